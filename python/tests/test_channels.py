"""Tests addresses, TLS files and bearer tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlenv import EnvUnreachable, GrpcEnv, RetryPolicy, Security
from sqlenv.channels import split_addresses
from stub_node import StubNode

Stub = Callable[..., StubNode]


def test_the_bearer_token_is_sent(stub: Stub, tmp_path: Path) -> None:
    node, file = stub(), tmp_path / "token"
    file.write_text("a secret of some length\n")
    with GrpcEnv(node.address, security=Security(bearer_token_file=str(file))) as env:
        env.info()
    with GrpcEnv(node.address) as env:
        env.info()
    assert node.authorizations == ["Bearer a secret of some length", ""]


def test_no_proxy_of_the_environment_is_used(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy")
    with GrpcEnv(stub().address, retry=RetryPolicy(total_seconds=0.0)) as env:
        env.info()


@pytest.mark.parametrize(
    ("scheme", "field", "content", "message"),
    [
        ("https", "certificate_file", "-----BEGIN", "certificate_file and key_file together"),
        ("https", "key_file", "-----BEGIN", "certificate_file and key_file together"),
        ("https", "ca_file", "no certificate", "the_file': give a PEM file"),
        ("http", "ca_file", "-----BEGIN", "http://a:1' is without TLS"),
        ("http", "bearer_token_file", "", "the_file': give a file with one line"),
        ("http", "bearer_token_file", "15 bytes in all\n", "at least 16 bytes"),
        ("http", "bearer_token_file", "two lines of\na token", "one line"),
        ("https", "bearer_token_file", "a token with é in it", "printable ASCII"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, scheme: str, field: str, content: str, message: str
) -> None:
    file = tmp_path / "the_file"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        GrpcEnv(f"{scheme}://a:1", security=Security(**{field: str(file)}))


def test_tls_with_client_certificates(stub: Stub, certificates: Path) -> None:
    key, certificate = str(certificates / "key.pem"), str(certificates / "cert.pem")
    pem = [(certificates / name).read_bytes() for name in ("key.pem", "cert.pem")]
    node = stub(tls=[*pem, pem[1]])
    with GrpcEnv(node.address, security=Security(certificate, certificate, key)) as env:
        assert env.info().environment_version == "stub"
    once = RetryPolicy(total_seconds=0.0)
    with (
        GrpcEnv(node.address, retry=once, security=Security(certificate)) as env,
        pytest.raises(EnvUnreachable),
    ):
        env.info()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a:1", ("http://a:1",)),
        (" a:1, https://b:2/ ,", ("http://a:1", "https://b:2")),
        (["http://a:1", "b:2"], ("http://a:1", "http://b:2")),
        ("http://a,HTTPS://b", ("http://a:80", "https://b:443")),
        ("[::1]:2,https://[::1]", ("http://[::1]:2", "https://[::1]:443")),
    ],
)
def test_addresses(given: str | list[str], found: tuple[str, ...]) -> None:
    assert split_addresses(given) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "no address"),
        ([], "no address"),
        ("ftp://a:1", "scheme 'ftp'"),
        ("a:65536", "address 'a:65536' .*: Port out of range"),
        ("a:0", "address 'a:0' cannot be used"),
        ("a:b", "address 'a:b' cannot be used"),
        ("http://:1", "a host and a port"),
        ("http://a:1/x", "only http:// or https://, a host and a port"),
        ("http://a b:1", "only http:// or https://, a host and a port"),
        ("http://a:1?x", "only http:// or https://, a host and a port"),
        ("http://b:2,http://me:pass,word@a:1", "^address 'a:1' has a user name or a password"),
    ],
)
def test_bad_addresses_are_named(given: str | list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_addresses(given)
