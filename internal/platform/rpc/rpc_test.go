package rpc

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-msgio/pbio"
	"github.com/multiformats/go-varint"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/blackhole/blackhole/pkg/fault"
)

const maxSize = 1 << 10

// bytesOf returns a message.
func bytesOf(b []byte) *wrapperspb.BytesValue { return wrapperspb.Bytes(b) }

func TestFrameIsThatOfPBIO(t *testing.T) {
	var b bytes.Buffer
	codec := NewCodec(&b, Unlimited{}, Format{MaxSize: maxSize})
	want, got := bytesOf([]byte("hello")), new(wrapperspb.BytesValue)
	require.NoError(t, codec.WriteMessage(want))
	require.NoError(t, pbio.NewDelimitedReader(&b, maxSize).ReadMsg(got))
	require.Equal(t, want.Value, got.Value)
	require.NoError(t, pbio.NewDelimitedWriter(&b).WriteMsg(want))
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
			err := NewCodec(bytes.NewBuffer(tc.bytes), Unlimited{}, format).ReadMessage(new(wrapperspb.BytesValue))
			require.ErrorIs(t, err, tc.kind)
			require.True(t, IsFault(err))
		})
	}
	err := NewCodec(bytes.NewBuffer([]byte{9, 1}), Unlimited{}, Format{MaxSize: maxSize}).ReadMessage(new(wrapperspb.BytesValue))
	require.Error(t, err)
	require.False(t, IsFault(err), "the stream ended")
}

// limited is a Memory of a number of bytes.
type limited struct{ left int }

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
	kind, field, message := Describe(fault.Invalidf("near.latitude", 91, "is too large"))
	err := Restore("op", kind, field, message)
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "near.latitude", fault.FieldOf(err))
	require.Contains(t, err.Error(), "is too large")

	err = Restore("op", 200, strings.Repeat("x", 2*maxText), "\xff"+strings.Repeat("y", 2*maxText))
	require.Equal(t, fault.Kind(200), fault.KindOf(err))
	require.Len(t, fault.FieldOf(err), maxText)
	require.LessOrEqual(t, len(fault.Message(err)), maxText)
	require.NotContains(t, err.Error(), "\xff")
	require.ErrorIs(t, Restore("op", math.MaxUint32, "", ""), fault.Internal)
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
