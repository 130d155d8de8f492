"""How fast the host copies memory, all cores at once: what bounds decoding where weights lie in it."""

from firstlight.probe.fact import Fact

# memmove through ctypes runs without the interpreter's lock; the first round touches the pages.
_SCRIPT = """
import ctypes, os, threading, time
size, count = 64 << 20, min(len(os.sched_getaffinity(0)), 8)
pairs = [(ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)) for _ in range(count)]
move = ctypes.CDLL(None).memmove
move.argtypes, move.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
def round_of():
    threads = [threading.Thread(target=move, args=(a, b, size)) for a, b in pairs]
    begun = time.perf_counter()
    for t in threads: t.start()
    for t in threads: t.join()
    return time.perf_counter() - begun
round_of()
print(2 * size * count, min(round_of() for _ in range(3)))
"""


def parse_memory_speed(text: str) -> float | None:
    """Bytes read and written over the shortest of three rounds, per second."""
    words = text.split()
    try:
        moved, seconds = int(words[0]), float(words[1])
    except (IndexError, ValueError):
        return None
    return round(moved / seconds) if moved > 0 and seconds > 0 else None


MEMORY_SPEED = Fact("memory-speed", ("python3", "-c", _SCRIPT.strip()), parse_memory_speed)
