"""The outputs that a front end saves in a notebook, from the messages of a kernel."""

MIME = "application/vnd.ipygpulogger.v1+json"
_OUTPUTS = ("stream", "display_data", "execute_result", "error")


def saved(messages):
    """The outputs of one cell as JupyterLab, nbclient and others keep them: a list of nbformat's outputs.

    What is displayed is looked up by its id when it is updated; text of one stream is joined to the output
    before, if that is of the same stream; a clear that waits is done with the next output.
    """
    outputs, ids, waits = [], {}, False
    for message in messages:
        kind, content = message["msg_type"], message["content"]
        if kind == "clear_output":
            waits = content["wait"]
            if not waits:
                outputs.clear()
        elif kind == "update_display_data":
            ids[content["transient"]["display_id"]]["data"] = content["data"]
        elif kind in _OUTPUTS:
            if waits:
                outputs.clear()
            waits = False
            output = {"output_type": kind, **content}
            name = content.get("transient", {}).get("display_id")
            if name:
                ids[name] = output
            if kind == "stream" and outputs and outputs[-1].get("name") == content["name"]:
                output["text"] = outputs.pop()["text"] + output["text"]
            outputs.append(output)
    return outputs


def shown(outputs):
    """What there is to see of them, in order: (stream, text), ("report", label), ("display", plain text)."""
    found = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            joined = found.pop()[1] if found and found[-1][0] == output["name"] else ""
            found.append((output["name"], joined + output["text"]))
        elif kind == "error":
            found.append(("error", output["ename"]))
        elif MIME in output["data"]:
            found.append(("report", output["data"][MIME]["label"]))
        elif any(output["data"].values()):
            found.append((kind.partition("_")[0], output["data"].get("text/plain")))
    return found
