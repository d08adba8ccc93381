# Hands events, a line of JSON each, to the handler of torch that argv names.
import logging

try:
    from torch.distributed.elastic.events import get_logging_handler

    handler = get_logging_handler(sys.argv[2])
except Exception as error:
    refuse("torch: " + reason(error))
ready()
handler.setLevel(logging.INFO)
for line in each_request():
    handler.handle(logging.LogRecord("events", logging.INFO, "", 0, line.rstrip("\n"), None, None))
handler.close()
