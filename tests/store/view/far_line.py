"""A line to a server that takes its time, as `ssh -L` to a far machine does."""

import socket
import threading
import time
from contextlib import contextmanager
from queue import SimpleQueue


@contextmanager
def far_line(port, delay_s):
    """The port of a proxy to a port of this machine, each byte of which is late in both ways."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, delay_s), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener, port, delay_s):
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        far = socket.create_connection(("127.0.0.1", port))
        for source, target in ((near, far), (far, near)):
            late = SimpleQueue()
            threading.Thread(target=_receive, args=(source, late, delay_s), daemon=True).start()
            threading.Thread(target=_send, args=(target, late), daemon=True).start()


def _receive(source, late, delay_s):
    data = b"-"
    while data:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        late.put((time.monotonic() + delay_s, data))


def _send(target, late):
    with target:
        while True:
            at_s, data = late.get()
            time.sleep(max(0, at_s - time.monotonic()))
            try:
                target.sendall(data)
            except OSError:
                return
            if not data:
                return
