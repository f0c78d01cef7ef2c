"""Verification: what is wrong in the files of a data directory that no server has."""

from topics.storage.verify.blobs import verify_blob as verify_blob
from topics.storage.verify.directory import verify_directory as verify_directory
from topics.storage.verify.finding import Finding as Finding
from topics.storage.verify.segments import verify_segment as verify_segment
