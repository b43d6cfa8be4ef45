"""The layout of draft tokens as a tree, and their acceptance by a greedy model.

Node 0 of a tree is the known token; its draft tokens follow. `first` is the first child of a node,
`next` its next sibling; -1 means no node.
"""

from __future__ import annotations

import torch

_OWN_MASK = 1  # mode of masks with draft tokens only, used by SGLang on a CPU


def build_tree_kernel_efficient_cpu(  # noqa: PLR0913, PLR0917  SGLang's signature
    parents: torch.Tensor,  # noqa: ARG001  in a chain: the previous draft token
    selected: torch.Tensor,  # noqa: ARG001
    lengths: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    index: torch.Tensor,
    first: torch.Tensor,
    following: torch.Tensor,
    topk: int,
    depth: int,  # noqa: ARG001
    nodes: int,
    mode: int,
) -> None:
    """Build chains of draft tokens. Trees are not supported here."""
    if topk != 1 or int(mode) != _OWN_MASK:
        raise NotImplementedError("only chains are supported; set --speculative-eagle-topk 1")
    requests, steps = len(lengths), torch.arange(nodes)
    mask.view(requests, nodes, nodes)[:] = torch.ones(nodes, nodes).tril().bool()
    positions.view(requests, nodes)[:] = lengths.unsqueeze(1) + steps
    index.view(requests, nodes)[:] = torch.arange(requests * nodes).view(requests, nodes)
    first.view(requests, nodes)[:] = torch.where(steps + 1 < nodes, steps + 1, -1)
    following.view(requests, nodes)[:] = -1


def reconstruct_indices_from_tree_mask(  # noqa: PLR0913, PLR0917
    mask: torch.Tensor,
    lengths: torch.Tensor,
    positions: torch.Tensor,
    index: torch.Tensor,
    first: torch.Tensor,
    following: torch.Tensor,
    requests: int,
    nodes: int,
) -> None:
    """Reconstruct trees from their masks."""
    above = mask.view(requests, nodes, nodes).bool().tril(-1)  # [request, node, ancestor]
    number = torch.arange(nodes)
    parent = torch.where(above, number, -1).amax(-1)
    siblings = (parent.unsqueeze(1) == parent.unsqueeze(2)) & (parent.unsqueeze(2) >= 0)
    later = siblings & (number > number.unsqueeze(1))
    positions.view(requests, nodes)[:] = lengths.unsqueeze(1) + above.sum(-1)
    index.view(requests, nodes)[:] = torch.arange(requests * nodes).view(requests, nodes)
    first.view(requests, nodes)[:] = _lowest(above.transpose(1, 2))
    following.view(requests, nodes)[:] = _lowest(later)


def _lowest(chosen: torch.Tensor) -> torch.Tensor:
    """Return the lowest index with True in the last dimension; -1 if all are False."""
    return torch.where(chosen.any(-1), chosen.int().argmax(-1), -1)


def verify_tree_greedy_cpu(  # noqa: PLR0913, PLR0917
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,  # SGLang's spelling of a keyword argument
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accept draft tokens down each tree while they match the model, plus one more token."""
    says = target_predict.reshape(-1)
    for request in range(len(candidates)):
        drafts, places = candidates[request].tolist(), retrive_index[request].tolist()
        first = retrive_next_token[request].tolist()
        following = retrive_next_sibling[request].tolist()
        node, accepted = 0, [places[0]]
        while len(accepted) < accept_index.shape[1]:
            word, child = int(says[accepted[-1]]), first[node]
            while child >= 0 and drafts[child] != word:
                child = following[child]
            if child < 0:
                break
            node = child
            accepted.append(places[node])
        given = torch.tensor(accepted, dtype=torch.long)
        predicts[given] = says[given].to(predicts.dtype)
        accept_index[request, : len(accepted)] = given.to(accept_index.dtype)
        accept_token_num[request] = len(accepted) - 1
