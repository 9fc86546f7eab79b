"""The record of a run (build/bench.json): each part with its own commit, time and errors, so that one
part can be measured again and merged with the others."""

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
    """Replaces old's parts by those of new, with all their values. The facts of the run are the old
    ones, since most parts are from it."""
    machine = {**old["machine"]}
    for key in ("accel", "emulated", "guest_kernel"):  # known only if a VM was booted
        if machine[key] in ("?", None):
            machine[key] = new["machine"][key]
    kept = {k: old[k] for k in (*FACTS, "versions") if k in old}
    return whole({**kept, "machine": machine}, {**old["parts"], **new["parts"]})


def busy(result, limit):
    """What others used of the CPUs around each part for which it was too much."""
    return [f"{part['others_cpus']} of a CPU around {name}" for name, part in result.get("parts", {}).items()
            if part.get("others_cpus", 0) > limit]


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
