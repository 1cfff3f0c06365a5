"""Guarantees from calibration bags: prediction sets, intervals, accepted calls, and their alarm."""
