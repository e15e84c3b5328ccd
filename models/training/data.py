"""Documents -> rows of fixed length that start at a document start; sparse soft targets where the teacher sampled."""
import numpy as np
import torch


class Data:
    def __init__(self, files, T, device, share=(0, 1), proc=None, proc_fraction=1.0, held=0, seed=0, alpha=0.1):
        """files: teacher document files; proc: procedural file of which every rank takes its share"""
        self.T, self.dev, self.alpha = T, device, alpha
        parts = [torch.load(f) for f in files]
        base_soft, toks, ws, softs, lens = 0, [], [], [], []
        sid, sp = [], []
        for d in parts:
            toks.append(d["tok"]); ws.append(d["weight"]); lens.append(d["len"])
            softs.append(torch.where(d["soft"] >= 0, d["soft"] + base_soft, d["soft"]))
            sid.append(d["sid"]); sp.append(d["sp"])
            base_soft += len(d["sid"])
        n_teacher = sum(len(x) for x in lens)
        pick = []
        for x in lens:  # `held` tokens of every teacher file are kept out of training, the same documents however many files a process has
            x = x.numpy()
            order = np.random.default_rng(1234).permutation(len(x))
            one = np.zeros(len(x), bool)
            one[order[: np.searchsorted(np.cumsum(x[order]), held) + 1]] = held > 0
            pick.append(one)
        if proc:
            d = torch.load(proc)
            ends = d["len"].cumsum(0)
            n = len(d["len"])
            a, b = n * share[0] // share[1], n * (share[0] + 1) // share[1]
            b = a + int((b - a) * proc_fraction)
            s, e = (ends[a - 1].item() if a else 0), ends[b - 1].item()
            toks.append(d["tok"][s:e]); ws.append(d["weight"][s:e]); softs.append(d["soft"][s:e]); lens.append(d["len"][a:b])
        self.tok = torch.cat(toks).to(device)
        self.w = torch.cat(ws).to(device)
        self.soft = torch.cat(softs).to(device)
        self.sid = torch.cat(sid).to(device) if sid else torch.zeros(1, 16, dtype=torch.int16, device=device)
        self.sp = torch.cat(sp).to(device) if sp else torch.zeros(1, 16, dtype=torch.float16, device=device)
        self.len = torch.cat(lens).numpy()
        self.begin = np.cumsum(self.len) - self.len
        pick = np.concatenate([*pick, np.zeros(len(self.len) - n_teacher, bool)])
        self.held_docs, self.train_docs = np.flatnonzero(pick), np.flatnonzero(~pick)
        self.rng = np.random.default_rng(seed)
        self.n_teacher = n_teacher

    def pack(self, docs):
        """-> index rows [R, T + 2] into the flat arrays"""
        need, rows, parts, have = self.T + 2, [], [], 0
        for d in docs:
            n = min(int(self.len[d]), need - have)
            parts.append((self.begin[d], n))
            have += n
            if have == need:
                rows.append(parts)
                parts, have = [], 0
        if not rows:
            return torch.zeros(0, need, dtype=torch.int32, device=self.dev)
        b = np.array([x[0] for r in rows for x in r]); n = np.array([x[1] for r in rows for x in r])
        idx = np.repeat(b - (np.cumsum(n) - n), n) + np.arange(n.sum())
        return torch.from_numpy(idx.astype(np.int32)).view(len(rows), need).to(self.dev)

    def epochs(self, batch):
        while True:
            d = self.train_docs.copy()
            self.rng.shuffle(d)
            rows = self.pack(d)
            for i in range(0, len(rows) - batch + 1, batch):
                yield self.batch(rows[i : i + batch])

    def held_rows(self, count):
        return self.pack(self.held_docs)[:count]

    def batch(self, idx, alpha=None):
        """-> ids [B, T], next tokens [B, T + 1], sparse targets ids/probs [B*T, K + 1], weight [B, T + 1]"""
        alpha = self.alpha if alpha is None else alpha
        idx = idx.long()
        T = self.T
        tok = self.tok[idx].long()
        w = self.w[idx].float()
        soft = self.soft[idx[:, 1 : T + 1]].reshape(-1).long()
        has = (soft >= 0).float()[:, None]
        s = soft.clamp(min=0)
        hard = tok[:, 1 : T + 1].reshape(-1, 1)
        ids = torch.cat([self.sid[s].long(), hard], 1)
        probs = torch.cat([self.sp[s].float() * has * (1 - alpha), 1 - has * (1 - alpha)], 1)
        return tok[:, :T], tok[:, 1:], ids, probs, w[:, 1:]
