"""Traces of what every step of a generation computed, read, held and set aside, and a web page over them."""

from winnow.inspector.page import render
from winnow.inspector.recorder import Recorder, record
from winnow.inspector.trace import LayerStep, Step, Token, Trace

__all__ = ["LayerStep", "Recorder", "Step", "Token", "Trace", "record", "render"]
