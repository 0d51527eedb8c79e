// Package offer has the commands that sell and find services.
package offer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// maxOfferFile bounds a file of offers, in bytes: a full batch of records of maximum size.
const maxOfferFile = 64 << 20

// Command makes the command offer.
func Command(con *term.Console) *cobra.Command {
	return command.Elsewhere(command.Parent(&cobra.Command{
		Use: "offer", Short: "Sell and find services: storage, compute, CDN, bandwidth, ...",
		Long: "Sell and find services: storage, compute, CDN, bandwidth and others. An offer describes one service\n" +
			"for sale. Its provider signs it, and the network keeps it.",
	}, offerRegister(con), offerUpdate(con), offerWithdraw(con), offerPause(con), offerResume(con), offerList(con),
		offerFind(con), offerWatch(con), offerShow(con), offerFields(con), offerReserve(con), offerGrants(con), offerRelease(con)),
		map[string]string{"status": "use offer show ID; offer grants shows what is free"})
}

func offerRegister(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "register -f FILE", Short: "Offer services in the network", Args: command.NoArgs,
		Long: "Offer the services that a file describes.\n\n" +
			"The file has YAML documents or JSON values, each an offer or a list of offers. Several\n" +
			"offers form one batch, with a separate result for each offer. The peer renews accepted\n" +
			"offers until withdrawn.",
	}
	file := offerFileFlag(cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		offers, err := readOffers(con, *file)
		if err != nil {
			return err
		}
		if len(offers) > 1 {
			return registerAll(ctx, r, c, offers)
		}
		out := offerResults(1)
		got, err := c.Offers().Register(ctx, offers[0])
		addReceipt(out, offers[0].ID, got, err)
		return out.Print(r)
	})
}

// registerAll registers offers as one batch and prints a result for each.
func registerAll(ctx context.Context, r *remote.Peer, c *operator.Client, offers []records.Offer) error {
	out := offerResults(len(offers))
	answers, err := c.Offers().RegisterBatch(ctx, offers)
	if err != nil {
		return err
	}
	for i, o := range answers[:min(len(answers), len(offers))] {
		addReceipt(out, offers[i].ID, o.Receipt, o.Err)
	}
	return out.Print(r)
}

func offerUpdate(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "update -f FILE", Short: "Replace the content of offers", Args: command.NoArgs,
		Long: "Replace the content of offers of the running peer. The file has the form of offer register.\nOffers are updated one after the other.",
	}
	file := offerFileFlag(cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		offers, err := readOffers(con, *file)
		if err != nil {
			return err
		}
		out := offerResults(len(offers))
		for _, o := range offers {
			got, err := c.Offers().Update(ctx, o)
			if addReceipt(out, o.ID, got, err); exit.Hopeless(err) {
				break
			}
		}
		return out.Print(r)
	})
}

func offerWithdraw(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "withdraw ID...", Short: "End offers in the whole network", Args: command.SomeArgs("ID")}, remote.DefaultTimeout)
	return changesEach(r, client.Offers.Withdraw)
}

func offerPause(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pause ID...", Short: "Leave offers out of all answers for a while", Args: command.SomeArgs("ID"),
		Long: "Leave offers out of all answers, until offer resume or for a time. They stay registered. A peer that stops\n" +
			"says the same of all its offers, until its next start.",
	}
	length := cmd.Flags().Duration("for", 0, "end of the pause after this time, at most a year; 0 means until offer resume")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return changesEach(r, func(o client.Offers, ctx context.Context, id string) (records.Receipt, error) {
		return o.Pause(ctx, id, *length)
	})
}

func offerResume(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "resume ID...", Short: "End the pause of offers", Args: command.SomeArgs("ID")}, remote.DefaultTimeout)
	return changesEach(r, client.Offers.Resume)
}

// changesEach makes a command that changes one offer after the other.
func changesEach(r *remote.Peer, change func(o client.Offers, ctx context.Context, id string) (records.Receipt, error)) *cobra.Command {
	return r.Calls(func(ctx context.Context, c *operator.Client, ids []string) error {
		out := offerResults(len(ids))
		for _, id := range ids {
			got, err := change(c.Offers(), ctx, id)
			if fault.KindOf(err) == fault.NotFound {
				err = exit.Answer(fault.NotFound, "this peer has no offer with this id: see %s offer ls%s", command.Program, r.Given())
			}
			err = exit.Fields{"id": "ID", "for": ""}.Answer(err)
			if addReceipt(out, id, got, err); exit.Hopeless(err) {
				break
			}
		}
		return out.Print(r)
	})
}

func offerList(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "ls", Short: "List the offers of the running peer", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		own, err := c.Offers().List(ctx)
		if err != nil {
			return err
		}
		views := make([]records.View, len(own))
		for i, rec := range own {
			views[i] = rec.View
		}
		sayUnseen(ctx, r, c, views...)
		return r.Print(recordList(views))
	})
}

// sayUnseen tells on standard error which own offers nobody else finds, and why.
func sayUnseen(ctx context.Context, r *remote.Peer, c *operator.Client, own ...records.View) {
	s, err := c.Status(ctx)
	if err != nil || len(own) == 0 {
		return // the offers are shown all the same
	}
	var ids []string
	for _, v := range own {
		if s.Peers == 0 || slices.Contains(s.RecordsUnstored, v.ID) {
			ids = append(ids, v.ID)
		}
	}
	why := "no other peer holds it; this peer announces it again"
	if s.Peers == 0 {
		why = "no other peer is connected"
	}
	if len(ids) > 0 {
		r.Say("nobody else sees %s: %s; see %s doctor%s", strings.Join(ids, ", "), why, command.Program, r.Given())
	}
}

// offerResults starts the results of a command that changes offers.
func offerResults(of int) *remote.Results {
	return &remote.Results{Of: of, Header: []string{"ID", "SEQUENCE", "STORED", "EXPIRES", "KEY"}}
}

// addReceipt notes the outcome for one offer.
func addReceipt(o *remote.Results, id string, r records.Receipt, err error) {
	if err != nil {
		o.Fail(id, err)
		return
	}
	o.Warn(r.ID, r.Warnings)
	stored := fmt.Sprintf("%d of %d", r.Stored.On, r.Stored.Of)
	if r.Stored.ThisPeerOnly {
		stored += " (this peer only)"
	}
	o.Add(r, r.ID, strconv.FormatUint(r.Sequence, 10), stored, term.At(r.ExpiresAt), r.Key)
}

// offerFileFlag adds -f.
func offerFileFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("file", "f", "", "file of offers, YAML or JSON; - means standard input (required)")
}

// readOffers reads at least one offer from a file.
func readOffers(c *term.Console, path string) ([]records.Offer, error) {
	if path == "" {
		return nil, fault.Invalidf("--file", nil, "is required; - means standard input")
	}
	data, err := file.Read(c, "--file", path, maxOfferFile)
	if err != nil {
		return nil, err
	}
	offers, err := parseOffers(data)
	if err == nil && len(offers) == 0 {
		err = fault.Invalidf("--file", path, "has no offers")
	}
	return offers, err
}

// parseOffers reads JSON if data is JSON, otherwise YAML. JSON has its own parser, because
// YAML does not accept every JSON text and has a lower size limit.
func parseOffers(data []byte) ([]records.Offer, error) {
	values, single := file.JSONValues(data)
	if values == nil {
		return records.ParseOffersYAML(data)
	}
	offers := make([]records.Offer, len(values))
	for i, value := range values {
		var err error
		if offers[i], err = records.ParseOffer(value); err != nil && !single {
			err = fault.In("["+strconv.Itoa(i)+"]", err)
		}
		if err != nil {
			return nil, err
		}
	}
	return offers, nil
}
