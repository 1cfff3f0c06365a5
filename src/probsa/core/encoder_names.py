"""Names of encoders as files state them: `resnet50@0123abcd` is a name with a digest of weights."""

from dataclasses import dataclass

SEPARATOR = "@"


@dataclass(frozen=True, slots=True)
class EncoderName:
    """An encoder and, of features that probsa extracted, its weights."""

    name: str
    digest: str = ""
    """Digest of the weights and settings; empty if it is not stated."""

    @classmethod
    def parse(cls, text: str) -> "EncoderName":
        """Return the parts of a stored name."""
        name, _, digest = text.partition(SEPARATOR)
        return cls(name, digest)

    def __str__(self) -> str:
        return f"{self.name}{SEPARATOR}{self.digest}" if self.digest else self.name

    def may_equal(self, other: "EncoderName") -> bool:
        """Return whether two names may be the same encoder: unknown weights equal any."""
        if self.name != other.name:
            return False
        return not self.digest or not other.digest or self.digest == other.digest
