"""Exchange of adapters with other libraries: AdapterHub's `adapters`, Hugging Face `peft`, and `composable-sft`.

Each format is one module with three functions:

    recognises(source)                     whether a folder has this format
    read(source, modules) -> Adapter       takes every flag and tensor, or raises with the reason
    write(adapter, modules, folder)        writes a folder that the other library loads without Intarsia

`reading.read_adapter` finds the format, reads, and checks that nothing is left over and that the adapter fits the base.
"""

FORMATS = ("peft", "adapterhub", "sft")  # each the name of a module here
EXPORTS = ("merged", "peft", "adapterhub", "sft", "inlay")  # the formats in which a task can leave its bank
