package rpc

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// maxText is the maximum length of a refusal's texts in bytes.
const maxText = 256

// Refuse returns the wire form of an error; nil for nil. The codes are the kinds of package fault.
func Refuse(err error) *peerv1.Refusal {
	if err == nil {
		return nil
	}
	return &peerv1.Refusal{
		Code: peerv1.Code(fault.KindOf(err)), Field: clip(fault.FieldOf(err)), Message: clip(fault.Message(err)),
		Unknown: strictproto.PathsOf(err),
	}
}

// Restore returns the error that a remote peer described; nil for nil. A code of a later version becomes
// Unavailable: the peer refused, and that is all this version knows. The paths of an Unsupported request are in
// a strictproto.Error.
func Restore(op string, r *peerv1.Refusal) error {
	if r == nil {
		return nil
	}
	message := clip(r.Message)
	kind := fault.Unavailable
	switch code := r.Code; {
	case code >= 0 && code <= math.MaxUint8 && fault.Kind(code).Known():
		kind = fault.Kind(code)
		message = cmp.Or(message, kind.String())
	default:
		message = fmt.Sprintf("refused with code %d of a later version: %s", r.Code, message)
	}
	cause := errors.New(message)
	if paths := pathsOf(r.Unknown); kind == fault.Unsupported && len(paths) > 0 {
		cause = &strictproto.Error{Paths: paths}
	}
	return &fault.Error{Op: op, Kind: kind, Field: clip(r.Field), Err: cause}
}

// pathsOf returns the well-formed paths of a remote peer.
func pathsOf(all []string) []string {
	var paths []string
	for _, path := range all[:min(len(all), strictproto.MaxPaths)] {
		odd := func(r rune) bool {
			return r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
		}
		if path != "" && len(path) <= maxText && !strings.ContainsFunc(path, odd) {
			paths = append(paths, path)
		}
	}
	return paths
}

// clip makes the text of a remote peer fit for a message and a log.
func clip(s string) string {
	return clean.Text(s, maxText)
}
