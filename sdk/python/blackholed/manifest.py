"""ManifestClient of SAP-044 Registry: services by name, as its specification has them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NoReturn, Optional

from ._http import Error, quote
from .client import Client

__all__ = ["ManifestClient", "ManifestError", "ServiceNotFoundError"]


class ManifestError(Exception):
    """A refusal of the registry, or no answer (status 0)."""

    def __init__(self, message: str, error_code: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.message, self.error_code, self.status = message, error_code, status


class ServiceNotFoundError(ManifestError):
    """No service, or no instance, has this name."""


class ManifestClient:
    """A registry at an URL. It sends no heartbeats by itself: Client does."""

    def __init__(self, manifest_url: str = "http://localhost:8500", token: Optional[str] = None) -> None:
        self._peer = Client(manifest_url, token)

    def register(
        self, name: str, version: str, interfaces: Mapping[str, str], metadata: Optional[Mapping[str, Any]] = None,
        **more: Any,
    ) -> str:
        """Registers an instance, and returns its id. more has the other fields: id, host, port, health_check, ..."""
        body = {
            "name": name, "version": version, "interfaces": dict(interfaces), "metadata": dict(metadata or {}), **more,
        }
        return str(self._call("POST", "/v1/services", body)["id"])

    def heartbeat(self, name: str, instance_id: str) -> Dict[str, Any]:
        return self._call("PUT", f"/v1/services/{quote(name)}/{quote(instance_id)}/heartbeat")

    def get_service(self, name: str) -> Dict[str, Any]:
        """One instance that is up."""
        found = self._call("GET", f"/v1/services/{quote(name)}", status="up")
        if isinstance(found, list):
            if not found:
                raise ServiceNotFoundError(f"service {name!r} has no instance that is up", "service_not_found", 404)
            return found[0]  # pyright: ignore[reportUnknownVariableType]
        return found

    def list_services(self, status: Optional[str] = None, tag: Optional[str] = None) -> List[Dict[str, Any]]:
        return self._call("GET", "/v1/services", status=status, tag=tag)

    def deregister(self, name: str, instance_id: str) -> None:
        self._call("DELETE", f"/v1/services/{quote(name)}/{quote(instance_id)}")

    def _call(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None, **query: Any) -> Any:
        try:
            return self._peer.call(method, path, body, **query)
        except Error as e:
            refused(e)
        except OSError as e:
            raise ManifestError(f"the registry does not answer: {e}", "service_unavailable") from e


def refused(e: Error) -> NoReturn:
    kind = ServiceNotFoundError if e.status in (404, 410) else ManifestError
    raise kind(e.body.get("message", str(e)), e.word, e.status) from e
