"""The certificate of a job's master, made by the program `openssl` when the job starts."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
from pathlib import Path

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError

MAKE = (
    *("openssl", "req", "-x509", "-nodes", "-days", "365", "-subj", "/CN=hvd_elastic_keras"),
    *("-addext", "subjectAltName=IP:127.0.0.1"),
    *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", "-", "-out", "-"),
)
_BEGIN = "-----BEGIN CERTIFICATE-----"


def make(job_dir: Path) -> None:
    """Makes a key (ECDSA, P-256) and its certificate, in one file that the user alone can read.

    Raises:
      ConfigurationError: the certificate cannot be made.
    """
    try:
        made = subprocess.run(MAKE, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise ConfigurationError(
            "--tls was given, but the program openssl, which makes the certificate of the job, is "
            "not installed. Install it (apt install openssl), or leave --tls out."
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise ConfigurationError(
            "--tls was given, but the program openssl has not made a certificate. It says: "
            f"{said}. Try it by hand: {' '.join(MAKE)}"
        ) from error
    files.write_secret(job_dir / files.CERTIFICATE, made)


def fingerprint_in(job_dir: Path) -> str:
    """Returns SHA-256 of the job's certificate in hexadecimal digits; empty if there is none."""
    try:
        text = (job_dir / files.CERTIFICATE).read_text()
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[text.index(_BEGIN) :])).hexdigest()
    except (OSError, ValueError):
        return ""


def context_of(job_dir: Path) -> ssl.SSLContext:
    """Returns the TLS context of a server that shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(os.fspath(job_dir / files.CERTIFICATE))
    return context
