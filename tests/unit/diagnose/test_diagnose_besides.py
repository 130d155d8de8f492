"""What is said beside a verdict (or not), and titles that name what the command line asked for."""

from firstlight.app.views.diagnosis import setting
from firstlight.catalog.rules import titled
from firstlight.diagnose.diagnose import diagnose

ARGS = "(APIServer pid=9) INFO 12-01 08:00:00 [api.py:28] non-default args: {'host': '198.51.100.9', 'port': 8117, 'model': '/m'}\n"
START = """(EngineCore pid=20) INFO 12-01 08:00:02 [core.py:114] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'
(Worker pid=30) INFO 12-01 08:00:05 [gpu_model_runner.py:5209] Starting to load model /m...
"""
READY = "(APIServer pid=9) INFO:     Application startup complete.\n"
STOP = "(EngineCore pid=20) INFO 12-01 08:05:00 [core.py:1300] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
DEAD = """(APIServer pid=9) ERROR 12-01 08:05:01 [async_llm.py:680] AsyncLLM output_handler failed.
(APIServer pid=9) ERROR 12-01 08:05:01 [async_llm.py:680] Traceback (most recent call last):
(APIServer pid=9) ERROR 12-01 08:05:01 [async_llm.py:680]   File "/x/vllm/v1/engine/core_client.py", line 900, in get_output_async
(APIServer pid=9) ERROR 12-01 08:05:01 [async_llm.py:680]     raise self._format_exception(outputs) from None
(APIServer pid=9) ERROR 12-01 08:05:01 [async_llm.py:680] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
"""
DIED = "(APIServer pid=9) ERROR 12-01 08:04:59 [core_client.py:650] Engine core proc EngineCore died unexpectedly, shutting down client.\n"
BIND = """Traceback (most recent call last):
  File "/x/vllm/entrypoints/launchers/launcher.py", line 341, in create_server_socket
    sock.bind(addr)
OSError: [Errno {number}] {text}
"""
TLS = """Traceback (most recent call last):
  File "/x/uvicorn/config.py", line 131, in create_ssl_context
    ctx.load_cert_chain(certfile, keyfile, get_password)
FileNotFoundError: [Errno 2] No such file or directory
/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 2 leaked objects
  warnings.warn('resource_tracker: There appear to be %d '
"""
JSON = """vllm serve: error: argument --compilation-config/-cc: 1 validation error for CompilationConfig
  Invalid JSON: key must be a string at line 1 column 2 [type=json_invalid, input_value='{level: 3', input_type=str]
"""


def test_what_a_server_prints_while_it_is_stopped_is_not_worth_a_word() -> None:
    found = diagnose((ARGS + START + READY + STOP + DEAD).encode())
    assert (found.outcome, found.contributing) == ("ready", [])


def test_that_an_earlier_start_died_is_said_of_a_log_that_got_ready() -> None:
    again = "(APIServer pid=11) INFO 12-01 08:09:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0\n"
    found = diagnose((ARGS + START + READY + DIED + DEAD + again + ARGS + START + READY).encode())
    assert found.outcome == "ready"
    assert [c.title for c in found.contributing] == ["an earlier start in this log ended here"]


def test_titles_name_the_host_and_the_port_of_the_command_line() -> None:
    for number, text, said in ((99, "Cannot assign requested address", "198.51.100.9"), (98, "Address already in use", "8117")):
        found = diagnose((ARGS + BIND.format(number=number, text=text)).encode())
        assert found.cause is not None
        assert said in found.cause.title


def test_a_warning_is_no_more_of_a_message() -> None:
    found = diagnose((ARGS + START + TLS).encode())
    assert found.cause is not None
    assert (found.cause.code, found.cause.evidence[0].text) == ("file-not-found", "FileNotFoundError: [Errno 2] No such file or directory")


def test_the_lines_behind_a_refused_flag_are_its_reason() -> None:
    found = diagnose(JSON.encode())
    assert found.cause is not None
    assert found.cause.title == "--compilation-config has a value that the engine does not accept"
    assert "Invalid JSON: key must be a string" in str(found.remedies[0].action)
    assert "{level: 3" in str(found.remedies[0].action)


def test_a_flag_is_taken_away() -> None:
    assert setting("num_gpu_blocks_override", None) == "without --num-gpu-blocks-override"


def test_of_parentheses_around_what_is_not_known_nothing_stays() -> None:
    assert titled("the port ({port|}) is taken", {}) == "the port is taken"
    assert titled("the port ({port|}) is taken", {"port": 8000}) == "the port (8000) is taken"
