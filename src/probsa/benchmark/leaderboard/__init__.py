"""The leaderboard of LocalMIL: bags, instances, doubt and faithfulness of every model and set."""
