"""The registry: one line for each method, in the order of listings."""
# ruff: isort: skip_file

from intarsia.methods.bottleneck import Bottleneck as Bottleneck
from intarsia.methods.pfeiffer import Pfeiffer as Pfeiffer
from intarsia.methods.bapna import Bapna as Bapna
from intarsia.methods.pal import PAL as PAL
from intarsia.methods.lora import LoRA as LoRA
from intarsia.methods.dora import DoRA as DoRA
from intarsia.methods.ia3 import IA3 as IA3
from intarsia.methods.prefix import Prefix as Prefix
from intarsia.methods.bitfit import BitFit as BitFit
from intarsia.methods.norms import LayerNorms as LayerNorms
from intarsia.methods.lottery_ticket import LotteryTicket as LotteryTicket
from intarsia.methods.diff_pruning import DiffPruning as DiffPruning
from intarsia.methods.top_layers import TopLayers as TopLayers
from intarsia.methods.full import Full as Full
from intarsia.methods.features import Features as Features
