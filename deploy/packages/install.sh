#!/bin/sh
# Installs the program blackholed of a release into a directory of the PATH, after it has checked what it got:
#
#	curl -fsSL $RELEASE/install.sh | BLACKHOLED_RELEASE=$RELEASE sh
#
#	BLACKHOLED_DIR       where the program goes (default /usr/local/bin, or ~/.local/bin without rights to that)
#	BLACKHOLED_RELEASE   where the folder of a release is served (default the page of this one)
set -eu

version='@VERSION@'
signer='@SIGNER@' # the public key of the release, as in ssh's authorized_keys; empty: the release is not signed
release=${BLACKHOLED_RELEASE:-@PAGE@}

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

case $(uname -s) in
Linux) os=linux ;;
Darwin) os=darwin ;;
*) fail "no program for $(uname -s): Windows has the archive blackholed_${version}_windows_amd64.zip and the Scoop manifest blackholed.json" ;;
esac
case $(uname -m) in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) fail "no program for $(uname -m): build it from source" ;;
esac
name=blackholed_${version}_${os}_${arch}

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
get() {
	if command -v curl >/dev/null; then
		curl -fsSL -o "$work/$1" "$release/$1"
	elif command -v wget >/dev/null; then
		wget -q -O "$work/$1" "$release/$1"
	else
		fail "needs curl or wget"
	fi || fail "cannot get $release/$1"
}

get SHA256SUMS
if [ -n "$signer" ]; then
	command -v ssh-keygen >/dev/null || fail "needs ssh-keygen to check the signature of the release"
	get SHA256SUMS.sig
	echo "release namespaces=\"blackholed-release\" $signer" >"$work/signers"
	ssh-keygen -Y verify -f "$work/signers" -I release -n blackholed-release -s "$work/SHA256SUMS.sig" <"$work/SHA256SUMS" >/dev/null ||
		fail "the signature of $release/SHA256SUMS is not the one of this release"
fi
get "$name.tar.gz"
want=$(awk -v file="$name.tar.gz" '$2 == file {print $1}' "$work/SHA256SUMS")
if command -v sha256sum >/dev/null; then
	got=$(sha256sum <"$work/$name.tar.gz")
else
	got=$(shasum -a 256 <"$work/$name.tar.gz")
fi
[ -n "$want" ] && [ "${got%% *}" = "$want" ] || fail "the checksum of $name.tar.gz is ${got%% *}, and SHA256SUMS has ${want:-none}"
tar -xzf "$work/$name.tar.gz" -C "$work"

dir=${BLACKHOLED_DIR:-/usr/local/bin}
if [ -z "${BLACKHOLED_DIR:-}" ] && [ ! -w "$dir" ]; then
	dir=$HOME/.local/bin
fi
mkdir -p "$dir"
# The new file gets its name in one step, so that a running daemon keeps the old one.
cp "$work/$name/blackholed" "$dir/.blackholed.new"
chmod 0755 "$dir/.blackholed.new"
mv -f "$dir/.blackholed.new" "$dir/blackholed"
"$dir/blackholed" --version
echo "installed as $dir/blackholed; begin with: blackholed run"
case :$PATH: in
*:"$dir":*) ;;
*) echo "$dir is not in your PATH" ;;
esac
