package discovery

import (
	"context"

	"github.com/blackhole/blackhole/pkg/records"
)

// Accepted calls do with the items without an error, unless there are none. do returns one result for each of
// its items, in order. Accepted returns one result for each of items, at the same position: the zero result for
// an item with an error.
func Accepted[T, R any](items []T, errs []error, do func(accepted []T) ([]R, error)) ([]R, error) {
	accepted := make([]T, 0, len(items))
	for i, item := range items {
		if errs[i] == nil {
			accepted = append(accepted, item)
		}
	}
	results := make([]R, len(items))
	if len(accepted) == 0 {
		return results, nil
	}
	done, err := do(accepted)
	if err != nil {
		return nil, err
	}
	next := 0
	for i := range items {
		if errs[i] == nil {
			results[i] = done[next]
			next++
		}
	}
	return results, nil
}

// RegisterAccepted registers the offers without an error in one batch. It returns one outcome for each of
// offers, in order; an offer with an error keeps that error.
func RegisterAccepted(ctx context.Context, w Writer, offers []records.Offer, errs []error) ([]Outcome, error) {
	outcomes, err := Accepted(offers, errs, func(accepted []records.Offer) ([]Outcome, error) {
		return w.RegisterBatch(ctx, accepted)
	})
	if err != nil {
		return nil, err
	}
	for i, err := range errs {
		if err != nil {
			outcomes[i].Err = err
		}
	}
	return outcomes, nil
}
