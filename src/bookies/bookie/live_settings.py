"""Settings of a running bookie: where each value comes from, and changes that last until the bookie stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from bookies.config import BookieConfig, parse_value, validate
from bookies.errors import ConfigError, InvalidArgument
from bookies.settings import LIVE, NEEDS_RESTART_AT_ZERO, Given, Layer, rows_of


class LiveSettings:
    """The settings of one bookie. `origins`: the places of those that are set.

    `apply`: makes the storage use the new settings.
    """

    def __init__(self, config: BookieConfig, apply: Callable[[BookieConfig], None]) -> None:
        self.config = config
        self.origins: Layer = {}
        self._apply = apply
        self.change_count = 0  # of settings
        self._changed: dict[str, None] = {}

    def rows(self) -> list[dict[str, object]]:
        """Return every setting with value, default, source, and whether it may change while the bookie runs."""
        others = [spec for spec in fields(self.config) if getattr(self.config, spec.name) != spec.default]
        started = {spec.name: Given(None, "start", "") for spec in others}
        changed = {name: Given(None, "run time", "") for name in self._changed}
        return rows_of(self.config, {**started, **self.origins, **changed})

    def change(self, values: Mapping[str, object], *, dry_run: bool = False) -> dict[str, dict[str, object]]:
        """Change all of these settings, or none. Return the old and the new value of each by name.

        A value may be text. Raises `InvalidArgument`.
        """
        specs = {setting.name: setting for setting in fields(self.config)}
        new: dict[str, Any] = {}
        for name, value in values.items():
            if name not in specs:
                raise InvalidArgument(f"{name}: no such setting")
            if name not in LIVE:
                raise InvalidArgument(f"{name} cannot change while the bookie runs: restart it with the new value")
            try:
                new[name] = parse_value(specs[name].default, value, name) if isinstance(value, str) else value
            except ConfigError as error:
                raise InvalidArgument(str(error)) from error
            if name in NEEDS_RESTART_AT_ZERO and not (new[name] and getattr(self.config, name)):
                raise InvalidArgument(f"{name} cannot become 0, or change from 0, while the bookie runs: restart it")
        try:
            config = validate(replace(self.config, **new))
        except ConfigError as error:
            raise InvalidArgument(str(error)) from error
        changes = {name: {"before": getattr(self.config, name), "after": value} for name, value in new.items()}
        if not dry_run:
            self.config = config
            self._changed |= dict.fromkeys(new)
            self.change_count += len(new)
            self._apply(config)
        return changes
