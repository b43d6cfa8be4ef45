"""Clients: send one request, stamp every token, return a record."""

from harness.client.base import Client, LiveClient, Request, failed_record, network_error_kind
from harness.client.http import RequestOptions, allow_open_files, playable
from harness.client.reach import client_for
from harness.client.virtual import VirtualClient

__all__ = [
    "Client",
    "LiveClient",
    "Request",
    "RequestOptions",
    "VirtualClient",
    "allow_open_files",
    "client_for",
    "failed_record",
    "network_error_kind",
    "playable",
]
