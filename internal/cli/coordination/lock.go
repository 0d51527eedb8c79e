package coordination

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/guard"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// lockFlags holds the arguments and flags of lock.
type lockFlags struct {
	names   []string // the first one is shown
	command []string
	ttl     time.Duration
	wait    time.Duration
	try     bool
	shared  bool
	permits uint32
}

// Lock makes the command lock.
func Lock(con *term.Console) *cobra.Command {
	const ends = "end the program that holds the lock, or its lease by `" + command.Program + " lock release NAME --force`; see lock ls"
	return command.Elsewhere(command.Parent(&cobra.Command{
		Use: "lock", Short: "Hold and list locks",
		Long: "Hold and list locks. A lock is a queue under a name: its holder has a fencing token, which rises from\nholder to holder.",
	}, lockHold(con), lockList(con), lockRelease(con)), map[string]string{"unlock": ends, "rm": ends, "acquire": "use lock hold", "get": "use lock ls", command.AnyWord: "use lock hold NAME -- COMMAND"})
}

func lockHold(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "hold NAME... [-- COMMAND ARG...]", Short: "Hold a lock, or several, alone or while a command runs",
		Long: "Take a lock and run a command under it. Without a command, hold the lock until\n" +
			"interrupted. Several names are taken in one moment, all or none, so callers never wait in a circle.\n\n" +
			"The command runs in its own process group with these variables:\n" +
			"  BLACKHOLE_LOCK_NAME, BLACKHOLE_LOCK_LEASE; of several names, which have one token, the first\n" +
			"  BLACKHOLE_LOCK_TOKEN     fencing token, to be checked by the storage that the command writes\n" +
			"  BLACKHOLE_LOCK_DEADLINE  Unix time until which the lock is certainly held, at the start;\n" +
			"                           this program renews the lock while the command runs\n" +
			"Before the lock is lost, the process group gets SIGTERM and then SIGKILL, so that it ends before\n" +
			"another client can hold the lock. An interrupt is passed on as SIGTERM. The exit code is the\n" +
			"command's own, 128 plus the signal that ended it, or 127 for an unknown command.\n\n" +
			"On Linux a guardian process kills everything that the command started, daemons included, also when\n" +
			"this program is killed or frozen. Elsewhere, processes that left the process group go on, and all go\n" +
			"on after this program is killed or frozen. Nothing kills a command that is frozen together with its\n" +
			"guardian before it goes on for a moment, so check the token at the storage. What a command that ended by\n" +
			"itself left behind goes on.",
		Example: "  " + command.Program + " lock hold --wait 30s db/migrate -- ./migrate up\n" +
			"  " + command.Program + " lock hold -n 3 pool/gpu -- ./train",
		Args: lockArgs,
	}
	var l lockFlags
	f := cmd.Flags()
	f.DurationVar(&l.ttl, "ttl", client.DefaultTTL, "time until others get the lock after this program dies")
	f.DurationVar(&l.wait, "wait", 0, "longest time to wait for the lock; 0 does not wait; without this flag there is no limit")
	f.BoolVar(&l.try, "try", false, "do not wait, as --wait 0")
	f.BoolVar(&l.shared, "shared", false, "share the lock with all others that use --shared")
	f.Uint32VarP(&l.permits, "permits", "n", 0, "share the lock among up to so many holders; all must use the same number")
	r := remote.New(con, cmd, remote.LockTimeout)
	r.ConnectOnly = true
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		l.names, l.command = args, nil
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			l.names, l.command = args[:dash], args[dash:]
		}
		if err := l.check(cmd); err != nil {
			return err
		}
		return takeLock(ctx, r, c, &l)
	})
}

// lockArgs requires names, and "--" before a command.
func lockArgs(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case len(args) == 0 || dash == 0:
		return fault.Invalidf("NAME", nil, "is missing")
	case dash < 0 && len(args) > 1:
		if _, err := exec.LookPath(args[1]); err == nil {
			return fault.Invalidf("NAME", args[1], "is a program: a command follows --")
		}
	}
	return nil
}

func (l *lockFlags) check(cmd *cobra.Command) error {
	switch {
	case l.try && cmd.Flags().Changed("wait"):
		return fault.Invalidf("--try", nil, "cannot be used with --wait")
	case l.shared && cmd.Flags().Changed("permits"):
		return fault.Invalidf("--shared", nil, "cannot be used with --permits")
	case l.ttl < time.Millisecond:
		return fault.Invalidf("--ttl", l.ttl, "must be at least 1ms")
	case l.wait < 0:
		return fault.Invalidf("--wait", l.wait, "must be at least 0")
	case cmd.Flags().Changed("permits") && l.permits == 0:
		return fault.Invalidf("--permits", l.permits, "must be above 0")
	}
	if !cmd.Flags().Changed("wait") {
		l.wait = coord.NoLimit
	}
	return guard.Check(l.command)
}

// application is the name of the lock's holder for people: the program under the lock.
func (l *lockFlags) application() string {
	if len(l.command) == 0 {
		return "blackholed lock"
	}
	const maxApplication = 255 // bytes, as of the name of a file
	return clean.Text(filepath.Base(l.command[0]), maxApplication)
}

func (l *lockFlags) options() []client.LockOption {
	opts := []client.LockOption{client.Wait(l.wait), client.Also(l.names[1:]...)}
	if l.shared {
		opts = append(opts, client.Shared())
	}
	if l.permits > 0 {
		opts = append(opts, client.Permits(l.permits))
	}
	return opts
}

// takeLock takes the lock, holds it and releases it at the end.
func takeLock(ctx context.Context, r *remote.Peer, c *operator.Client, l *lockFlags) error {
	connecting, cancel := r.Connecting(ctx)
	defer cancel()
	s, err := c.Locks().Session(connecting, client.TTL(l.ttl), client.Application(l.application()))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(remote.CleanupTimeout, s.Remaining()))
		defer cancel()
		if err := s.Close(ctx); err != nil {
			r.Say("warning: the lock could not be released; a group with a leader ends it within %s: %s", s.TTL(), exit.Message(err))
		}
	}()
	take, taking := s.Lock, ctx
	if l.try || l.wait == 0 {
		take, taking = s.TryLock, connecting // it does not wait for a group without a majority either
	}
	stop := tellHolders(ctx, r.Console, c, l.names, coord.LeaseID(s.Lease()))
	held, err := take(taking, l.names[0], l.options()...)
	stop()
	switch {
	case errors.Is(err, client.ErrNotAcquired):
		return exit.With(exit.NotAcquired, fault.New("", fault.Conflict, "%s: others hold the lock", strings.Join(l.names, ", ")))
	case err != nil:
		return exit.Fields{"name": "NAME", "others": "NAME", "permits": "", "mode": "--permits"}.Rename(err)
	case len(l.command) == 0:
		return holdAlone(ctx, r, held)
	}
	p, err := guard.StartGuarded(r.Console, l.command, lockEnvironment(held, time.Now())...)
	if err != nil {
		return err
	}
	return p.Supervise(ctx, held, l.ttl)
}

// holdAlone shows a lock and holds it until interrupted.
func holdAlone(ctx context.Context, r *remote.Peer, held *client.Held) error {
	token, lease := strconv.FormatInt(int64(held.Token()), 10), LeaseID(coord.LeaseID(held.Lease()))
	err := r.Print(term.Document{
		Value: map[string]any{"name": held.Name(), "key": held.Key(), "fencing_token": held.Token(), "lease_id": held.Lease()},
		Table: term.Pairs([][]string{{"lock", held.Name()}, {"token", token}, {"lease", lease}, {"key", held.Key()}}),
	})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-held.Context().Done():
		return guard.Lost(held)
	}
}

// lockEnvironment describes a held lock to a child process.
func lockEnvironment(held *client.Held, now time.Time) []string {
	deadline := now.Add(held.Remaining()).Unix()
	return environ.Lock(held.Name(), strconv.FormatInt(int64(held.Token()), 10), LeaseID(coord.LeaseID(held.Lease())), strconv.FormatInt(deadline, 10))
}

func lockList(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{
		Use: "ls [PREFIX]", Short: "List the locks that clients hold or wait for",
		Args: command.AtMostOne("PREFIX"),
		Long: "List the locks that clients hold or wait for. AGE counts from when the answering member learned of a\n" +
			"claim: the claim is at least as old.",
	}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		var all []LockState
		for after := ""; ; after = all[len(all)-1].Name {
			page, err := Locks(ctx, c, strings.Join(args, ""), after, 0)
			if err != nil {
				return exit.Rename(err, "PREFIX")
			}
			if all = append(all, page...); len(page) == 0 {
				break
			}
		}
		return r.Print(term.Document{Value: map[string]any{"locks": term.Emptied(all)}, Items: term.Items(all), Table: LockTable(all)})
	})
}

func lockRelease(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "release NAME --force", Short: "End the hold of another program on a lock", Args: command.OneArg("NAME"),
		Long: "End the lease of the program that holds a lock: all its locks and keys end with it, it learns that, and the next\n" +
			"in line holds the lock with a higher token. A program that is stuck or frozen may write until it learns: only a\n" +
			"storage that checks the token refuses that. Needs the role admin, unless the lock is the caller's own, or the peer\n" +
			"has no authentication. The log of the peer has a line about it. A program that works gives its lock back by itself.",
	}
	force := cmd.Flags().Bool("force", false, "end the holder's lease")
	token := cmd.Flags().Int64("fencing-token", 0, "token of one of several holders, as lock ls shows it")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		l, err := FindLock(ctx, c, args[0])
		if err != nil {
			return exit.Rename(err, "NAME")
		}
		holders := slices.DeleteFunc(l.Holding, func(h ClaimState) bool { return *token != 0 && h.Token != coord.Token(*token) })
		switch {
		case len(holders) == 0:
			return fault.New("", fault.NotFound, "nobody holds the lock %s with this token", args[0])
		case len(holders) > 1:
			return fault.Invalidf("--fencing-token", nil, "is missing: %d hold the lock; see lock ls %s", len(holders), args[0])
		case !*force:
			return fault.Invalidf("--force", nil, "is missing: it ends the lease of %s", holderOf(holders[0]))
		}
		done, err := c.Coordination().Execute(ctx, coord.CommandOf("", &apiv1.UnlockRequest{Name: l.Name, FencingToken: int64(holders[0].Token), Force: true}))
		switch {
		case err != nil:
			return exit.Fields{"name": "NAME", "force": ""}.Rename(err)
		case done.GetUnlock().GetCount() == 0:
			return fault.New("", fault.NotFound, "the holder has ended meanwhile: see lock ls %s", args[0])
		}
		r.Say("ended the lease of %s", holderOf(holders[0]))
		return nil
	})
}

// LockTable has a row for each claim: first the holders of a lock, then its waiters.
func LockTable(locks []LockState) term.Grid {
	var rows [][]string
	for _, l := range locks {
		for state, claims := range [][]ClaimState{l.Holding, l.Waiting} {
			for _, c := range claims {
				mode, _ := c.Mode.MarshalText() // never fails
				if c.Permits > 0 {
					mode = fmt.Appendf(mode, " of %d", c.Permits)
				}
				rows = append(rows, []string{
					l.Name, []string{"holds", "waits"}[state], string(mode), strconv.FormatInt(int64(c.Token), 10),
					term.OrDash(c.Application), term.OrDash(c.Holder), Age(c.AgeMs),
				})
			}
		}
		if l.LeftOut > 0 {
			rows = append(rows, []string{l.Name, "and " + strconv.FormatUint(uint64(l.LeftOut), 10) + " more", "-", "-", "-", "-", "-"})
		}
	}
	return term.Table([]string{"LOCK", "STATE", "MODE", "TOKEN", "APPLICATION", "HOLDER", "AGE"}, rows)
}

// Age shows how old a claim is, in milliseconds. Zero means unknown.
func Age(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
}

// tellAfter is the time that lock waits in silence.
const tellAfter = time.Second

// tellHolders writes once on standard error who holds a lock that this program waits for, after tellAfter. Without an
// answer it writes nothing: the call for the lock reports what is wrong. The returned function ends it, and waits for that.
func tellHolders(ctx context.Context, con *term.Console, c *operator.Client, names []string, own coord.LeaseID) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		silent := time.NewTimer(tellAfter)
		defer silent.Stop()
		select {
		case <-ctx.Done():
			return
		case <-silent.C:
		}
		for _, name := range names {
			l, err := FindLock(ctx, c, name)
			if has := func(claim ClaimState) bool { return claim.Lease == own }; err == nil && !slices.ContainsFunc(l.Holding, has) {
				con.Say("waiting for the lock %s: %s", name, standing(l, own))
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// holderOf tells who holds a lock, and for how long.
func holderOf(c ClaimState) string {
	who := term.OrDash(c.Holder)
	if c.Application != "" {
		who = c.Application + " of " + who
	}
	if since := Age(c.AgeMs); since != "-" {
		who += " for " + since
	}
	return who
}

// standing tells who holds a lock, for how long, and how many wait before a lease.
func standing(l LockState, own coord.LeaseID) string {
	var holders []string
	for _, c := range l.Holding {
		holders = append(holders, holderOf(c))
	}
	before := 0
	for before < len(l.Waiting) && l.Waiting[before].Lease != own {
		before++
	}
	text := "held by " + strings.Join(holders, ", ")
	if len(holders) == 0 {
		text = "nobody holds it"
	}
	switch before {
	case 0:
		return text + "; next in line"
	default:
		return fmt.Sprintf("%s; %d before this one", text, before)
	}
}
