"""Tests that are coroutines over a world: `scenes_of` turns a function that plays such a coroutine into a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

Act = Callable[..., Coroutine[Any, Any, None]]


def scenes_of(play: Callable[..., object]) -> Callable[..., Callable[[Act], Callable[..., None]]]:
    """Return a decorator for tests. Its arguments are those of `play` after the coroutine function.

    The test's first parameter is what `play` passes, the others are pytest's.
    """

    def scene(*arguments: object, **options: object) -> Callable[[Act], Callable[..., None]]:
        def decorate(act: Act) -> Callable[..., None]:
            def test(**given: object) -> None:
                play(lambda place: act(place, **given), *arguments, **options)

            signature = inspect.signature(act)
            parameters = list(signature.parameters.values())[1:]
            test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
            test.__name__, test.__doc__, test.__module__ = act.__name__, act.__doc__, act.__module__
            return test

        return decorate

    return scene
