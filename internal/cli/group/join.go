package group

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
)

func groupJoin(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "join SURVIVOR", Short: "Give the peer's group up for another one of the network",
		Long: "Give the group of the running peer up for the group of SURVIVOR: a context, or the gRPC address of a\n" +
			"peer that needs no credentials. It needs the role admin at both peers. The group is frozen, then the\n" +
			"survivor's revision is raised above the final one, and then all its peers go over. All its locks and\n" +
			"leases end with their keys, its holders learn that they lost, and every later token is above all\n" +
			"tokens that either group ever gave. At the survivor, claims that wait end, and watches begin anew.\n\n" +
			"Refused if applications keep locks, leases or keys in the group; --force ends them. Run the command\n" +
			"again if it breaks off; group resume takes it back.",
		Args: command.OneArg("SURVIVOR"), ValidArgsFunction: remote.CompleteContext(con),
	}
	var dry, force bool
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would happen")
	cmd.Flags().BoolVar(&force, "force", false, "even if locks, leases and keys of applications end")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, ends *operator.Client, args []string) error {
		survivor, err := r.Other("SURVIVOR", args[0])
		if err != nil {
			return err
		}
		defer func() { _ = survivor.Close() }() // all calls have ended: an error is harmless
		done, err := joinGroups(ctx, ends.Coordination(), survivor.Coordination(), dry, force)
		if err != nil {
			return err
		}
		return r.Print(term.Document{Value: done, Table: outcomeTable(done)})
	})
}

// joinGroups carries out the two orders of a merge. The right to raise the survivor is tried before the other group freezes.
func joinGroups(ctx context.Context, ends, survivor coord.Admin, dry, force bool) (done coord.MemberOutcome, err error) {
	at := func(where string, err error) error {
		if err == nil {
			return nil
		}
		return fault.New("", fault.KindOf(err), "%s: %w", where, err)
	}
	from, err := ends.Group(ctx)
	if err != nil {
		return done, err
	}
	to, err := survivor.Group(ctx)
	if err != nil {
		return done, at("at the survivor", err)
	}
	if from.ID == to.ID || from.ID == "" || to.ID == "" {
		return done, fault.Refused(fault.Conflict, "SURVIVOR", "both peers use group %q: name a peer of another one", to.ID)
	}
	raise := coord.MemberChange{Action: coord.RaiseGroup, Group: from.ID, DryRun: true}
	raised, err := survivor.ChangeMembers(ctx, raise)
	if err != nil {
		return done, at("at the survivor", err)
	}
	done, err = ends.ChangeMembers(ctx, coord.MemberChange{Action: coord.JoinGroup, Group: to.ID, DryRun: dry, Force: force})
	if err != nil {
		return done, named(err, coord.JoinGroup, nil)
	}
	done.Steps = append(done.Steps, raised.Steps...)
	if dry {
		return done, nil
	}
	raise.DryRun, raise.Revision = false, done.Revision
	if _, err = survivor.ChangeMembers(ctx, raise); err != nil {
		return done, at(fmt.Sprintf("the group is frozen at revision %d, and the survivor is not raised: run the command again, or group resume", done.Revision), err)
	}
	return done, nil
}
