package rpc

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/multiformats/go-varint"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

const maxSize = 1 << 10

// bytesOf returns a message.
func bytesOf(b []byte) *wrapperspb.BytesValue { return wrapperspb.Bytes(b) }

func TestFrameIsTheDelimitedOne(t *testing.T) {
	var b bytes.Buffer
	codec := NewCodec(&b, &network.NullScope{}, Format{MaxSize: maxSize})
	want, got := bytesOf([]byte("hello")), new(wrapperspb.BytesValue)
	require.NoError(t, codec.WriteMessage(want))
	require.NoError(t, protodelim.UnmarshalFrom(&b, got))
	require.Equal(t, want.Value, got.Value)
	_, err := protodelim.MarshalTo(&b, want)
	require.NoError(t, err)
	got = new(wrapperspb.BytesValue)
	require.NoError(t, codec.ReadMessage(got))
	require.Equal(t, want.Value, got.Value)
}

func TestReadMessageRefuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes []byte
		kind  fault.Kind
	}{
		{"one byte too long", varint.ToUvarint(maxSize + 1), fault.TooLarge},
		{"largest length", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, fault.TooLarge},
		{"length without an end", bytes.Repeat([]byte{0xff}, 12), fault.Unauthentic},
		{"length not minimal", []byte{0x80, 0x00}, fault.Unauthentic},
		{"not a message", []byte{3, 0xff, 0xff, 0xff}, fault.Unauthentic},
		{"check", []byte{2, 0x0a, 0}, fault.LimitReached},
	} {
		t.Run(tc.name, func(t *testing.T) {
			format := Format{MaxSize: maxSize, Check: func(m []byte) error {
				if len(m) == 2 {
					return fault.New("", fault.LimitReached, "two bytes")
				}
				return nil
			}}
			err := NewCodec(bytes.NewBuffer(tc.bytes), &network.NullScope{}, format).ReadMessage(new(wrapperspb.BytesValue))
			require.ErrorIs(t, err, tc.kind)
			require.True(t, IsFault(err))
		})
	}
	err := NewCodec(bytes.NewBuffer([]byte{9, 1}), &network.NullScope{}, Format{MaxSize: maxSize}).ReadMessage(new(wrapperspb.BytesValue))
	require.Error(t, err)
	require.False(t, IsFault(err), "the stream ended")
}

// limited is memory of a number of bytes.
type limited struct {
	network.NullScope
	left int
}

func (l *limited) ReserveMemory(n int, _ uint8) error {
	if l.left < n {
		return errors.New("no memory left")
	}
	l.left -= n
	return nil
}

func (l *limited) ReleaseMemory(n int) { l.left += n }

func TestMemoryIsReservedAndReleased(t *testing.T) {
	var b bytes.Buffer
	mem := &limited{left: 100}
	codec := NewCodec(&b, mem, Format{MaxSize: maxSize})
	require.NoError(t, codec.WriteMessage(bytesOf(make([]byte, 90))))
	require.NoError(t, codec.ReadMessage(new(wrapperspb.BytesValue)))
	require.ErrorIs(t, codec.WriteMessage(bytesOf(make([]byte, 100))), fault.LimitReached)
	require.Zero(t, b.Len())
	b.Write(varint.ToUvarint(101))
	require.ErrorIs(t, codec.ReadMessage(new(wrapperspb.BytesValue)), fault.LimitReached, "before the bytes arrive")
	require.Equal(t, 100, mem.left)
}

func TestClassify(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Classify(ended, fault.New("", fault.TooLarge, "x")), fault.Canceled)
	require.ErrorIs(t, Classify(t.Context(), fault.New("", fault.TooLarge, "x")), fault.TooLarge)
	require.ErrorIs(t, Classify(t.Context(), errors.New("reset")), fault.Unavailable)
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	require.ErrorIs(t, Classify(late, errors.New("reset")), fault.Timeout)
	require.ErrorIs(t, Classify(t.Context(), timeout{}), fault.Timeout)
}

type timeout struct{}

func (timeout) Error() string { return "deadline" }
func (timeout) Timeout() bool { return true }

func TestErrorsAreRestored(t *testing.T) {
	require.Nil(t, Refuse(nil))
	require.NoError(t, Restore("op", nil))
	err := Restore("op", Refuse(fault.Invalidf("near.latitude", 91, "is too large")))
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "near.latitude", fault.FieldOf(err))
	require.Contains(t, err.Error(), "is too large")

	err = Restore("op", &peerv1.Refusal{Code: 200, Field: strings.Repeat("x", 2*maxText), Message: "\xff" + strings.Repeat("y", 2*maxText)})
	require.ErrorIs(t, err, fault.Unavailable, "a code of a later version is a refusal and no more")
	require.Contains(t, fault.Message(err), "code 200 of a later version")
	require.Len(t, fault.FieldOf(err), maxText)
	require.Less(t, len(fault.Message(err)), 2*maxText)
	require.NotContains(t, err.Error(), "\xff")
	require.ErrorIs(t, Restore("op", &peerv1.Refusal{Code: -1}), fault.Unavailable)
}

// The codes on the wire and the kinds of errors are one list.
func TestCodesAreKinds(t *testing.T) {
	for code, name := range peerv1.Code_name {
		kind := fault.Kind(code)
		require.Equal(t, "CODE_"+strings.ToUpper(kind.String()), name)
		require.ErrorIs(t, Restore("", Refuse(fault.New("", kind, "x"))), kind)
	}
	require.Contains(t, fault.Kind(len(peerv1.Code_name)).String(), "kind(", "a kind without a code")
}

func TestUnknownPathsCrossTheWire(t *testing.T) {
	err := Restore("op", Refuse(strictproto.Refuse([]string{"query.query.25", "timeout_ms"})))
	require.ErrorIs(t, err, fault.Unsupported)
	require.Equal(t, []string{"query.query.25", "timeout_ms"}, strictproto.PathsOf(err))
	err = Restore("op", &peerv1.Refusal{Code: peerv1.Code_CODE_UNSUPPORTED, Message: "no", Unknown: []string{"A", "", "a b", strings.Repeat("a", maxText+1)}})
	require.Empty(t, strictproto.PathsOf(err), "no path of a request")
	require.Equal(t, "no", fault.Message(err))
	err = Restore("op", &peerv1.Refusal{Code: peerv1.Code_CODE_UNSUPPORTED, Unknown: slices.Repeat([]string{"a"}, 100)})
	require.Len(t, strictproto.PathsOf(err), strictproto.MaxPaths)
}

// Any input is read as a message within the bounds, or ends in an error.
func FuzzReadMessage(f *testing.F) {
	f.Add([]byte{2, 0x0a, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		mem := &limited{left: maxSize}
		m := new(wrapperspb.BytesValue)
		if err := NewCodec(bytes.NewBuffer(b), mem, Format{MaxSize: maxSize}).ReadMessage(m); err == nil {
			require.LessOrEqual(t, len(m.Value), maxSize)
		}
		require.Equal(t, maxSize, mem.left)
	})
}
