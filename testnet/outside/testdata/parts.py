"""What the clients in Python share: parts of a test, calls beside each other, and an expected refusal."""

import queue
import threading

PATIENCE = 60  # seconds, bounds a wait; a passing test does not depend on it


def play(*parts):
    for part in parts:
        part()
        print("ok", part.__name__, flush=True)


def together(*calls):
    """Runs calls beside each other. The first failure ends the wait for the others."""
    ended = queue.Queue()

    def work(call):
        try:
            call()
            ended.put(None)
        except BaseException as e:
            ended.put(e)

    for call in calls:
        threading.Thread(target=work, args=(call,), daemon=True).start()
    for _ in calls:
        if (failure := ended.get(timeout=PATIENCE)) is not None:
            raise failure


def raises(kind, call, *args, **named):
    try:
        call(*args, **named)
    except kind as e:
        return e
    raise AssertionError(f"{call.__name__}{args} raised no {kind.__name__}")
