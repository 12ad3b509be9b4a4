"""What the book reads and keeps in files: each is whole and verified, or refused.

Results are kept as tables of text (csv), trees of arrays (safetensors) and JSON. A file is written
beside its place, forced to the disk, and moved there in one step, so that a process that dies at
any moment leaves the old file or the new one. A result in JSON has a block ``provenance``, which
says where it comes from; one of its entries is the digest of all the rest of the file. Files of
other kinds have their block in ``manifest.json`` beside them.
"""

from mha_book.storage.arrays import load_arrays, load_tree, save_arrays
from mha_book.storage.arrays import tree_arrays as tree_arrays
from mha_book.storage.files import NOT_RECORDED as NOT_RECORDED
from mha_book.storage.files import PROVENANCE as PROVENANCE
from mha_book.storage.files import file_digest as file_digest
from mha_book.storage.files import payload_digest as payload_digest
from mha_book.storage.files import read_result
from mha_book.storage.files import seal as seal
from mha_book.storage.files import write_atomic as write_atomic
from mha_book.storage.packages import find_package as find_package
from mha_book.storage.packages import import_extra as import_extra
from mha_book.storage.packages import installed_file as installed_file
from mha_book.storage.tables import read_table
from mha_book.storage.tables import write_table as write_table

__all__ = ["load_arrays", "load_tree", "read_result", "read_table", "save_arrays"]
