"""`Namespace`: the logs of one place; `open_namespace` opens it by its URI. Source: distributedlog 2, 6.1."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from bookies.client.base import Opening
from bookies.client.base.arguments import TimeLimit
from bookies.client.client import Client
from bookies.config import ClientConfig
from bookies.configuration import configured
from bookies.distributedlog.batches import Batches
from bookies.distributedlog.dlog import Dlog, Locks
from bookies.distributedlog.formats.binding import Binding, parse_binding
from bookies.distributedlog.formats.log_names import (
    DEFAULT_NAME,
    SCHEMES,
    NamespacePlace,
    check_name,
    is_reserved,
    parse_namespace_uri,
)
from bookies.distributedlog.parts import LogParts
from bookies.distributedlog.store import LogStore, RecordTree, Tree
from bookies.errors import ConfigError, LogNotFound, MetadataError, NotSupported
from bookies.metadata import uri as metadata
from bookies.metadata.zookeeper.zk_client import ZooKeeperClient
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Create,
    NodeExists,
    NodeMissing,
    SetData,
    ZooKeeper,
)
from bookies.model import NAME_CHARACTERS
from bookies.runtime.ports import Runtime

SESSION_TIMEOUT_S = 30.0  # as Apache's default
CLIENT_ID_BITS = 48


class Namespace:
    """The logs below one path. Made by `open_namespace`.

    `tree`: the znodes, with or without locks; `path`: the namespace's root in it. `client`: of the ledgers' cluster.
    """

    def __init__(
        self,
        runtime: Runtime,
        tree: Tree,
        path: str,
        client: Client,
        *,
        binding: Binding | None = None,
        password: bytes = b"",
        owner: str | None = None,
    ) -> None:
        self.path = path
        self.binding = binding
        self._runtime = runtime
        self._tree = tree
        self.client = client
        self._password = password
        self._owner = owner or f"bookies-{runtime.random.getrandbits(CLIENT_ID_BITS):012x}"
        self._locks = Locks()
        tree.on_session_lost(self._locks.session_lost)

    def __repr__(self) -> str:
        return f"<Namespace {self.path} {self.client!r}>"

    def log(self, name: str) -> Dlog:
        """Return a log by its name, which may or may not exist: no request is sent. Raises `InvalidArgument`."""
        return Dlog(self._parts(name), self._locks)

    def _parts(self, name: str) -> LogParts:
        store = LogStore(self._tree, self.path, check_name(name))
        first = self.binding.first_lssn if self.binding is not None and self.binding.first_lssn is not None else 1
        has_locks = not isinstance(self._tree, RecordTree)
        return LogParts(self.client, self._runtime, store, self._password, first, self._owner, has_locks)

    def batches(self, name: str) -> Batches:
        """Return the batches of a log, which the tasks of Spark's sink write together. Raises `InvalidArgument`."""
        return Batches(self._parts(name))

    async def logs(self, prefix: str = "", *, timeout: float | None = None) -> list[str]:
        """Return the names directly below a prefix such as "web/shop", sorted. A name may be a prefix of others."""
        async with TimeLimit(timeout, f"list the logs of {self.path}"):
            path = f"{self.path}/{check_name(prefix)}" if prefix else self.path
            try:
                names, _ = await self._tree.children(path, sync=True)
            except NodeMissing:
                return []
            begin = f"{check_name(prefix)}/" if prefix else ""
            return sorted(begin + name for name in names if not is_reserved(name))

    async def rename(self, old: str, new: str, *, timeout: float | None = None) -> None:
        """Rename a log. Its segments stay where they are.

        Raises `LogNotFound`, `LogExists`, `LogInUse` (a writer, a reader with the lock, or a cursor).
        """
        async with TimeLimit(timeout, f"rename log {old}"):
            store = self._parts(old).store
            try:
                await store.rename(self._parts(new).store)
            except NodeMissing:
                raise store.missing() from None

    async def close(self) -> None:
        """Close connections and sessions. Writers that are not closed leave their segment to the next one."""
        await self._tree.close()
        await self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def open_namespace(
    uri: str,
    *,
    password: bytes = b"",
    owner: str | None = None,
    config: ClientConfig | None = None,
    session_timeout: float = SESSION_TIMEOUT_S,
    timeout: float | None = None,
) -> Opening[Namespace]:
    """Open a namespace: `async with open_namespace(uri) as namespace`, or await it.

    * `distributedlog://HOST:2181,HOST:2181/PATH`: in ZooKeeper, shared with Apache's DistributedLog. The binding there
      names the BookKeeper cluster. Needs the extra `distributedlog`.
    * `file:DIRECTORY#NAME`, `memory:NAME#NAME`, `etcd://HOST:2379/SCOPE#NAME`: in the metadata store of a cluster,
      without ZooKeeper, hence without Java. `#NAME`: of several namespaces, default `default`. It has no locks.

    * `password`: of the ledgers; Apache's default is empty.
    * `owner`: the name that others see when this process has a lock; None: a random one.
    * `config`: settings of the client; None: from the environment and BK_CONFIG.
    * `session_timeout`: seconds that the locks of a process outlive it, in ZooKeeper.
    * `timeout`: seconds.

    Raises `ConfigError`, `LogNotFound` (no such namespace), `MetadataError`.
    """
    chosen = config or configured(ClientConfig)
    scheme = uri.partition(":")[0]
    if scheme in SCHEMES:
        place = parse_namespace_uri(uri)
        return Opening(
            lambda: _open_zookeeper(place, password, owner, chosen, session_timeout), timeout, f"open namespace {uri}"
        )
    if scheme.startswith("zk"):
        raise ConfigError(f"{uri!r}: expected distributedlog://HOST:2181/PATH for a namespace in ZooKeeper")
    store_uri, _, name = uri.partition("#")
    name = name or DEFAULT_NAME
    if not NAME_CHARACTERS.issuperset(name):
        raise ConfigError(f"{uri!r}: the name of a namespace has letters, digits, - . and _")
    return Opening(lambda: _open_records(store_uri, name, password, chosen), timeout, f"open namespace {uri}")


async def _open_records(uri: str, name: str, password: bytes, config: ClientConfig) -> Namespace:
    from bookies.runtime import aio

    runtime = aio.runtime()
    driver = metadata.connect(uri, runtime, may_create=False)
    client = Client(runtime, driver, config)
    try:
        await client.open_session()
        if await driver.instance_id() is None:
            raise MetadataError(f"there is no cluster at {uri}: start one with `bk up`, or its first bookie")
        return Namespace(runtime, RecordTree(driver, name), f"/{name}", client, password=password)
    except BaseException:
        await client.close()
        raise


async def _open_zookeeper(
    place: NamespacePlace, password: bytes, owner: str | None, config: ClientConfig, session_timeout_s: float
) -> Namespace:
    from bookies.runtime import aio

    runtime = aio.runtime()
    zookeeper = await _session(place, runtime, session_timeout_s)
    try:
        binding = await binding_of(zookeeper, place.path)
        servers = binding.servers.replace(",", ";")
        driver = metadata.connect(f"zk://{servers}{binding.ledgers}", runtime, may_create=False)
        client = Client(runtime, driver, config)
        try:
            await client.open_session()
            return Namespace(runtime, zookeeper, place.path, client, binding=binding, password=password, owner=owner)
        except BaseException:
            await client.close()
            raise
    except BaseException:
        await zookeeper.close()
        raise


async def _session(place: NamespacePlace, runtime: Runtime, timeout_s: float = SESSION_TIMEOUT_S) -> ZooKeeper:
    zookeeper = ZooKeeperClient(place.hosts, int(timeout_s * 1000), runtime)
    await zookeeper.open()
    return zookeeper


async def binding_of(tree: Tree, path: str) -> Binding:
    """Return the binding that applies to a path: its own, or that of the nearest path above.

    Raises `LogNotFound`, `NotSupported` (a federated namespace), `MetadataCorrupt`.
    """
    above = path
    while above:
        try:
            data, _ = await tree.get(above, sync=True)
        except NodeMissing:
            data = b""
        if data:
            binding = parse_binding(data, above)
            if binding.is_federated:
                raise NotSupported(f"{above} is a federated namespace: open the namespaces in it")
            return binding
        above = above.rpartition("/")[0]
    raise LogNotFound(f"{path} is not a namespace of DistributedLog: create one with `bookies.distributedlog.bind`")


async def bind(uri: str, ledgers: str, *, timeout: float | None = None) -> None:
    """Create a namespace, or bind it anew: `bind("distributedlog://zk:2181/logs", "zk://zk:2181/ledgers")`.

    `ledgers`: the metadata URI of the BookKeeper cluster, in ZooKeeper. Ledgers that exist stay where they are. Raises
    `ConfigError`, `MetadataError`.
    """
    from bookies.metadata.zookeeper.zk_layout import parse_uri
    from bookies.runtime import aio

    place, cluster = parse_namespace_uri(uri), parse_uri(ledgers)
    binding = Binding(
        cluster.hosts, cluster.root, place.hosts, reader_servers=cluster.hosts, log_reader_servers=place.hosts
    )
    async with TimeLimit(timeout, f"bind {uri}"):
        zookeeper = await _session(place, aio.runtime())
        try:
            await write_binding(zookeeper, place.path, binding)
        finally:
            await zookeeper.close()


async def write_binding(tree: Tree, path: str, binding: Binding) -> None:
    """Write a binding, and the paths above it that are missing."""
    parts = path.split("/")
    for count in range(2, len(parts) + 1):
        try:
            await tree.multi([Create("/".join(parts[:count]), b"", Acl.OPEN)])
        except NodeExists:
            pass
    await tree.multi([SetData(path, binding.pack())])
