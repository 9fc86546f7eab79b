"""What a run leaves (build/bench.json): each part with its own commit, time and troubles, so that
one part can be measured again and put beside the others."""

FACTS = ("made", "commit", "dirty", "quick")  # of a part, and of the run that had most of them


def gather(parts):
    """(results by peer, troubles) of all parts together; the parts have different keys."""
    results, troubles = {}, []
    for part in parts.values():
        for peer, found in part["results"].items():
            results.setdefault(peer, {}).update(found)
        troubles += part["troubles"]
    return results, troubles


def whole(facts, parts):
    """The record of a run: facts has FACTS, machine and versions."""
    results, troubles = gather(parts)
    return {**facts, "seconds": sum(p["seconds"] for p in parts.values()), "parts": parts,
            "results": results, "troubles": troubles}


def merge(old, new):
    """The parts of new in place of old's; what an old part had measured goes with it. What is said
    of the run is the old one's: that had most of it."""
    machine = {**old["machine"]}
    for key in ("accel", "emulated", "guest_kernel"):  # known only to who booted a VM
        if machine[key] in ("?", None):
            machine[key] = new["machine"][key]
    return whole({**{k: old[k] for k in FACTS}, "machine": machine, "versions": old["versions"]},
                 {**old["parts"], **new["parts"]})


def origins(result):
    """Sentences about parts that were measured apart from the rest."""
    said = []
    for name, part in result.get("parts", {}).items():
        if all(part[k] == result[k] for k in ("commit", "dirty", "quick", "made")):
            continue
        said.append(f"{name}: {part['made'][:16].replace('T', ' ')} UTC, commit "
                    f"{part['commit'][:12]}{' with changes' if part['dirty'] else ''}"
                    f"{', a quick run' if part['quick'] else ''}")
    return said
