#!/bin/sh
# Makes what the peers of compose.yaml share, in the folder $1: a CA, a certificate for all of them, the token of the
# admin, and the key of the network. What is there already stays. The user $2 owns the secrets: a peer refuses a secret that others can read.
set -eu
cd "$1"
umask 077
if [ ! -f server.crt ]; then
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 825 -keyout ca.key -out ca.crt -subj "/CN=blackholed compose" 2>/dev/null
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -keyout server.key -out server.csr -subj "/CN=blackholed" 2>/dev/null
	cat >server.ext <<-EOF
		subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:peer-1,DNS:peer-2,DNS:peer-3,DNS:peer-4,DNS:peer-5
		basicConstraints=critical,CA:FALSE
	EOF
	openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -days 825 -extfile server.ext -out server.crt 2>/dev/null
	rm ca.key server.csr server.ext # a new certificate needs a new CA: nobody can sign with this one
fi
if [ ! -f admin.token ]; then
	openssl rand -hex 32 >admin.token
fi
if [ ! -f network.key ]; then
	openssl rand -base64 32 | tr '+/' '-_' | tr -d '=' >network.key
fi
chown "$2" server.key admin.token network.key
chmod 0755 .
chmod 0644 ca.crt server.crt
