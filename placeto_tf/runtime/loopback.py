"""Restricts a server of this process to the loopback interface.

TensorFlow's gRPC server listens on 0.0.0.0 for every given address, and runs any graph that anybody
sends. The listening address cannot be changed, but packets can be filtered: a process may attach a
filter (classic BPF, socket(7), SO_ATTACH_FILTER) to its own sockets without privileges. The filter
accepts packets for the server's port only if they are addressed to 127.0.0.0/8. No other machine
can send such packets, so no connection from another machine is made. Accepted sockets inherit the
filter, and the filter is locked, so that it cannot be removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys

# Names and numbers of linux/filter.h and asm-generic/socket.h (x86, ARM, RISC-V).
_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
_LOAD_HALF, _LOAD_WORD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x28, 0x20, 0x54, 0x15, 0x06
_PROTOCOL, _DESTINATION = -0x1000, -0x100000 + 16  # of the packet; in its IP header
_ETH_P_IP = 0x0800
_ALL, _NOTHING = 0xffffffff, 0
# (operation, skipped if true, skipped if false, operand)
_PROGRAM = (
    (_LOAD_HALF, 0, 0, _PROTOCOL),
    (_JUMP_IF_EQUAL, 0, 4, _ETH_P_IP),  # also where an IPv6 socket takes IPv4
    (_LOAD_WORD, 0, 0, _DESTINATION),
    (_AND, 0, 0, 0xff000000),
    (_JUMP_IF_EQUAL, 0, 1, 127 << 24),
    (_RETURN, 0, 0, _ALL),
    (_RETURN, 0, 0, _NOTHING),
)


def restrict(port: int) -> int:
  """Restricts this process's sockets on a port, listening and connected, to packets of loopback.

  Call this before the server begins to serve.

  Raises:
    OSError: the system has no such filters, or nothing listens on the port.
  """
  if not sys.platform.startswith("linux"):
    raise OSError(f"{sys.platform} has no filters for sockets")
  found = [0, 0]
  # First servers, then connections: those accepted in between inherit the locked filter, which
  # cannot be attached again.
  for listens in (1, 0):
    locked = contextlib.suppress(*([] if listens else [PermissionError]))
    for name in os.listdir("/proc/self/fd"):
      try:
        copy = socket.socket(fileno=os.dup(int(name)))
      except OSError:  # no socket, or closed by now
        continue
      with copy, locked:
        if copy.family in (socket.AF_INET, socket.AF_INET6) and (
            copy.type == socket.SOCK_STREAM and copy.getsockname()[1] == port
            and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == listens):
          attach(copy)
          found[listens] += 1
  if not found[1]:
    raise OSError(f"nothing listens on port {port}")
  return found[1]


def attach(server: socket.socket) -> None:
  """Attaches the filter to a socket, for good.

  Raises:
    OSError: the system does not have such filters.
  """
  program = ctypes.create_string_buffer(b"".join(
      # struct sock_filter: code, jt, jf, k.
      struct.pack("=HBBI", operation, if_true, if_false, operand & 0xffffffff)
      for operation, if_true, if_false, operand in _PROGRAM))
  server.setsockopt(
      socket.SOL_SOCKET, _SO_ATTACH_FILTER,
      # struct sock_fprog: number of instructions, and their address.
      struct.pack("@HP", len(_PROGRAM), ctypes.addressof(program)))
  server.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
