"""Did making serving faster make the answers worse? Paired evaluation of two vLLM arms."""

__version__ = "0.1.0"
