"""Whether the Hugging Face hub answers: asked once, so that a machine without a network does not wait for retries."""

import socket
import urllib.request
from functools import cache
from urllib.parse import urlsplit

SECONDS = 5.0  # for the hub to accept a connection


@cache
def go_offline_if_unreachable() -> None:
    """The hub's clients serve what is cached, and fail at once for the rest, as by HF_HUB_OFFLINE=1."""
    import datasets
    import huggingface_hub

    place = urlsplit(huggingface_hub.constants.ENDPOINT)
    if urllib.request.getproxies():  # the hub is reached through another machine, if at all
        return
    try:
        port = place.port or (80 if place.scheme == "http" else 443)
        socket.create_connection((place.hostname or "", port), SECONDS).close()
    except OSError:
        huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
