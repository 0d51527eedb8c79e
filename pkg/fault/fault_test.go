package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestWrapKeepsKindAndField(t *testing.T) {
	inner := fault.Invalidf("latitude", 91.0, "must be in [-90, 90]")
	err := fault.Wrap("discovery.Query", fault.In("near", inner))

	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.Equal(t, "near.latitude", fault.FieldOf(err))
	require.Equal(t, 91.0, fault.ValueOf(err))
	require.Equal(t, "discovery.Query: near.latitude: must be in [-90, 90]", err.Error())
	require.Equal(t, "must be in [-90, 90]", fault.Message(err))
	require.ErrorIs(t, err, fault.Invalid)
	require.NotErrorIs(t, err, fault.NotFound)
}

func TestForeignErrors(t *testing.T) {
	require.Equal(t, fault.Timeout, fault.KindOf(fault.Wrap("x", context.DeadlineExceeded)))
	require.Equal(t, fault.Canceled, fault.KindOf(fmt.Errorf("a: %w", context.Canceled)))
	require.Equal(t, fault.Internal, fault.KindOf(io.EOF))
	require.ErrorIs(t, fault.As("x", fault.Unavailable, io.EOF), io.EOF)
	require.Nil(t, fault.Wrap("x", nil))
	require.Nil(t, fault.As("x", fault.Invalid, nil))
	require.Nil(t, fault.In("x", nil))
}

func TestInIndexesLists(t *testing.T) {
	err := fault.In("records", fault.In("[3]", fault.Invalidf("id", "a/b", "has a slash")))
	require.Equal(t, "records[3].id", fault.FieldOf(err))
	require.Equal(t, "body", fault.FieldOf(fault.In("body", errors.New("no JSON"))))
}

func TestKindNamesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for k := fault.Internal; k <= fault.Canceled; k++ {
		require.False(t, seen[k.String()], "kind %d repeats %q", k, k)
		seen[k.String()] = true
	}
	require.Equal(t, "kind(200)", fault.Kind(200).String())
}

func TestTemplates(t *testing.T) {
	place := &fault.Error{Kind: fault.Invalid, Field: "location"}
	query := &fault.Error{Kind: fault.Invalid, Op: "discovery.Query"}
	err := fault.Wrap("discovery.Register", fault.Invalidf("location.latitude", 91, "too large"))

	require.ErrorIs(t, err, place)
	require.NotErrorIs(t, err, query)
	require.NotErrorIs(t, fault.Invalidf("locations", nil, "x"), place)
	require.NotErrorIs(t, fault.New("x", fault.NotFound, "location"), place)
	require.ErrorIs(t, fault.Wrap("outer", fault.Wrap("discovery.Query", io.EOF)), &fault.Error{Kind: fault.Internal, Op: "discovery.Query"})
}
