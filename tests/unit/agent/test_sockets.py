import pytest

from broadside.agent.sockets import ESTABLISHED, LISTEN, parse_sockets

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4 1
   1: 0100007F:1451 0100007F:9C4A 01 00000000:00000000 00:00000000 00000000     0        0 5 1
   2: 0100007F:1451 0100007F:9C4C 01 00000000:00000000 00:00000000 00000000     0        0 6 1
   3: 0100007F:9C4A 0100007F:1451 01 00000000:00000000 00:00000000 00000000     0        0 7 1
   4: 0100007F:1451 0100007F:9C00 06 00000000:00000000 03:00001770 00000000     0        0 0 3
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx
   0: 00000000000000000000000000000000:1452 00000000000000000000000000000000:0000 0A 00000000:0000
"""


def test_sockets_are_counted_by_port_and_state() -> None:
    counts = parse_sockets(TCP)
    assert counts[5201, LISTEN] == 1
    # The closing connection and the client side should not be counted.
    assert counts[5201, ESTABLISHED] == 2
    assert parse_sockets(TCP6)[5202, LISTEN] == 1


@pytest.mark.parametrize("text", ["", TCP.splitlines()[0]])
def test_an_empty_table_has_no_sockets(text: str) -> None:
    assert not parse_sockets(text)
