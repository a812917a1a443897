"""Fine-tuning a small language model with a bound on what it forgets, with Hugging Face's Trainer.

`python examples/forgetting.py` (extra `frameworks`)

A byte-level GPT-2 learns the prose of Python's docstrings, then its code. Fine-tuned freely it forgets the prose; with
the loss on prose bounded by what it was, plus 0.05, it keeps it. Both texts come with Python.

`--width 384 --layers 6 --steps 2000` takes two minutes on a GPU (H200): the loss on held-out prose goes from 1.80 to
2.16 when code is learned freely, and to 1.65 with the bound.
"""

import argparse
import ast
import sysconfig
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import lariax.torch as lt
from lariax.torch.transformers import ConstrainedTrainer

LENGTH, SLACK = 128, 0.05


def texts(files=400):
    """(prose, code) as bytes: docstrings of the standard library, and its code without them."""
    prose, code = [], []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:files]:
        tree = ast.parse(path.read_text(errors="ignore"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                prose.append(ast.get_docstring(node))
                node.body = node.body[1:] or [ast.Pass()]
        code.append(ast.unparse(tree))
    return "\n\n".join(prose).encode(), "\n\n".join(code).encode()


class Pieces(torch.utils.data.Dataset):
    """Pieces of LENGTH bytes, of several texts in turn, with the number of the text."""

    def __init__(self, *sources):
        parts = [torch.frombuffer(bytearray(s), dtype=torch.uint8)[: len(s) // LENGTH * LENGTH] for s in sources]
        self.parts = [part.reshape(-1, LENGTH) for part in parts]

    def __len__(self):
        return len(self.parts) * max(map(len, self.parts))

    def __getitem__(self, i):
        which, place = i % len(self.parts), i // len(self.parts)
        ids = self.parts[which][place % len(self.parts[which])].long()
        return {"input_ids": ids, "labels": ids, "which": torch.tensor(which)}


class Model(GPT2LMHeadModel):
    """Takes the number of the text too, which the constraint needs."""

    def forward(self, input_ids, labels=None, which=None, **kwargs):
        return super().forward(input_ids=input_ids, labels=labels)


def by_row(outputs, inputs):
    logits, labels = outputs.logits[:, :-1].transpose(1, 2), inputs["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none").mean(dim=1)


def rows(outputs, inputs):
    """Half of the rows are code, half prose: twice the mean over all is the mean over one kind."""
    losses, is_prose = by_row(outputs, inputs), (inputs["which"] == 1).float()
    return 2 * losses * (1 - is_prose), {"prose": 2 * losses * is_prose}


@torch.no_grad()
def loss_on(model, text, pieces=128):
    data = Pieces(text)
    batch = {"input_ids": torch.stack([data[i]["input_ids"] for i in range(min(pieces, len(data)))])}
    batch = {"input_ids": batch["input_ids"].to(model.device)}
    return float(by_row(model.eval()(**batch), {"labels": batch["input_ids"]}).mean())


def arguments(steps, folder):
    return TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=32, learning_rate=1e-3, lr_scheduler_type="cosine",
        warmup_steps=steps // 20, report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=steps, seed=0,
    )  # fmt: skip


def run(width=48, layers=2, steps=150, files=60):
    """The losses on held-out (code, prose): before fine-tuning, fine-tuned freely, with the bound; and the bound."""
    prose, code = texts(files)
    cut, cut_code = int(0.9 * len(prose)), int(0.9 * len(code))
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=width, n_layer=layers, n_head=max(1, width // 64),
                        bos_token_id=0, eos_token_id=0)  # fmt: skip
    model, found = Model(config), {}
    with tempfile.TemporaryDirectory() as folder:
        Trainer(model, arguments(steps, folder), train_dataset=Pieces(prose[:cut])).train()
        trained = {name: value.clone() for name, value in model.state_dict().items()}

        def judged():
            return loss_on(model, code[cut_code:]), loss_on(model, prose[cut:])

        found["before"] = judged()
        Trainer(model, arguments(steps, folder), train_dataset=Pieces(code[:cut_code])).train()
        found["free"] = judged()
        model.load_state_dict(trained)
        bound = loss_on(model, prose[:cut]) + SLACK
        multipliers = lt.Multipliers({"prose": lt.AtMost(bound)}, parameters=model)
        both = Pieces(code[:cut_code], prose[:cut])
        settings = {"rows": rows, "multipliers": multipliers}
        ConstrainedTrainer(model, arguments(steps, folder), train_dataset=both, **settings).train()
        found["bounded"] = judged()
    return found, bound, multipliers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 48), ("layers", 2), ("steps", 150), ("files", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    found, bound, multipliers = run(**vars(parser.parse_args()))
    for name, (code, prose) in found.items():
        print(f"{name:8} code {code:.3f}   prose {prose:.3f}")
    level, _, error = multipliers.values["prose"]
    print(f"on training rows prose has {level:.3f} +- {error:.3f}, of at most {bound:.3f}")
    print(f"its multiplier is {multipliers['prose']:.3f}")


if __name__ == "__main__":
    main()
