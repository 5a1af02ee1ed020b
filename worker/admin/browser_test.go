package admin_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/device"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/claim"
	"tenure/embedded"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
	"tenure/worker/admin"
)

var screenshots = flag.Bool("screenshots", false, "make the pictures of the page in docs anew")

// A browser is a tab of a headless Chromium, and what it has complained about.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// newBrowser starts Chromium, which ends with the test. Without one the test is
// skipped, but not where CI is.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v; .ci/chromium installs it", err)
		}
		t.Skip(err)
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()),
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(time.Minute),
	)
	t.Cleanup(cancel)
	b := &browser{t: t}
	b.ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	err = chromedp.Listen(b.ctx, func(event any) {
		text := ""
		switch e := event.(type) {
		case *cdplog.EventEntryAdded:
			text = e.Entry.Text + " " + e.Entry.URL
		case *cdpruntime.EventExceptionThrown:
			text = e.ExceptionDetails.Text
		default:
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints = append(b.complaints, text)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(b.ctx, cdplog.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// run carries out an action within half a minute.
func run[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

// do carries out actions that give nothing.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	run(b, chromedp.Steps(actions...))
}

// prefer sets the scheme of colours that the browser prefers.
func (b *browser) prefer(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// ask evaluates an expression that gives a text.
func (b *browser) ask(expression string) string {
	b.t.Helper()
	return run(b, chromedp.Evaluate[string]("String("+expression+")"))
}

// await waits until an expression gives the text.
func (b *browser) await(within time.Duration, expression, want string) (took time.Duration) {
	b.t.Helper()
	began := time.Now()
	for {
		got := b.ask(expression)
		took = time.Since(began)
		if got == want {
			return took
		}
		if took > within {
			b.t.Errorf("%s = %q after %v, want %q", expression, got, took, want)
			return took
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// said returns what the browser has complained about since the last call.
func (b *browser) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.complaints
	b.complaints = nil
	return all
}

// An exhibit is a group of four workers with a page, in real time.
type exhibit struct {
	url     string
	admin   *claim.Admin
	bucket  *bucket.Bucket
	stop    func() // of the page
	workers map[string]func()
}

func newExhibit(t *testing.T, opts ...admin.Option) *exhibit {
	t.Helper()
	server, err := embedded.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	nc, err := server.Connect(bucket.ConnOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	x := &exhibit{workers: make(map[string]func())}
	if x.bucket, err = bucket.Open(t.Context(), js, bucket.Fresh()); err != nil {
		t.Fatal(err)
	}
	var shown []*claim.Claimer
	for _, id := range []string{"fra-1", "fra-2", "ams-1", "ams-2"} {
		c, err := claim.New(t.Context(), js, "orders", claim.WithBucket(x.bucket), claim.WithID(id), claim.WithTTL(15*time.Second),
			claim.WithPartitions(claim.Numbered(48)...), claim.WithZone(id[:3]))
		if err != nil {
			t.Fatal(err)
		}
		if shown == nil {
			shown = []*claim.Claimer{c}
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Run(ctx, idle)
		}()
		x.workers[id] = func() { cancel(); <-done }
		t.Cleanup(x.workers[id])
	}
	if x.admin, err = claim.NewAdmin(t.Context(), x.bucket, "orders"); err != nil {
		t.Fatal(err)
	}
	page := admin.New(opts...)
	page.Show(admin.Pool{Bucket: x.bucket, Claimers: shown})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x.url = "http://" + ln.Addr().String() + "/"
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- page.Serve(ctx, ln) }()
	x.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
	})
	t.Cleanup(x.stop)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := claim.ReadStatus(t.Context(), x.bucket, "orders")
		if err == nil && s.Unassigned == 0 && s.Plan.Moving == 0 && len(s.Workers) == 4 {
			return x
		}
		if time.Now().After(deadline) {
			t.Fatalf("status = %+v, %v, want everything to run", s, err)
		}
	}
}

// owner returns an expression for who has a partition, by the table.
func owner(partition int) string {
	return fmt.Sprintf(`document.querySelector("#p%d .worker").textContent`, partition)
}

func TestPageInABrowser(t *testing.T) {
	b := newBrowser(t)
	x := newExhibit(t)
	locker, err := kvlock.New(t.Context(), x.bucket.JetStream(), kvlock.WithBucket(x.bucket), kvlock.WithOwner("billing-7"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close(context.Background()) }() // the server ends right after
	job, err := locker.Lock(t.Context(), "invoices/nightly")
	if err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(x.url))
	b.await(5*time.Second, `document.getElementById("state").textContent`, "live")

	t.Run("a move shows up within two seconds", func(t *testing.T) {
		b.t = t
		from := b.ask(owner(0))
		to := "ams-2"
		if from == to {
			to = "fra-1"
		}
		moved := time.Now()
		if err := x.admin.Move(t.Context(), "0", to); err != nil {
			t.Fatal(err)
		}
		b.await(2*time.Second, owner(0), to)
		took := time.Since(moved)
		if took > 2*time.Second {
			t.Errorf("the move shows up after %v, want at most 2 s", took)
		}
		t.Logf("the move from %s to %s shows up after %v", from, to, took.Round(time.Millisecond))
		first := b.ask(`[...document.querySelectorAll("#moves li")].some(l => l.textContent.includes("` + from + ` → ` + to + `"))`)
		if first != "true" {
			t.Errorf("the moves are %s, want %s → %s among them", b.ask(`document.getElementById("moves").textContent`), from, to)
		}
		if got := b.ask(`document.querySelector("#p0 time").dateTime`); got < moved.Add(-time.Second).UTC().Format(time.RFC3339) {
			t.Errorf("partition 0 is there since %s, want since the move", got)
		}
	})

	t.Run("the page says all that the status says", func(t *testing.T) {
		b.t = t
		s, err := claim.ReadStatus(t.Context(), x.bucket, "orders")
		if err != nil {
			t.Fatal(err)
		}
		cards := make(map[string][]string)
		var rows []string
		for _, p := range s.Partitions {
			if p.Since.IsZero() || p.Token == 0 || p.Why == "" {
				t.Errorf("partition %+v has no since, token or reason", p)
			}
			rows = append(rows, strings.Join([]string{p.Name, p.State, p.Worker, p.Since.UTC().Format(time.RFC3339Nano), fmt.Sprint(p.Token), p.Why}, "|"))
			cards[p.Worker] = append(cards[p.Worker], p.Name)
		}
		var workers []string
		for _, w := range s.Workers {
			workers = append(workers, w.ID+": "+strings.Join(cards[w.ID], " "))
		}
		var moves []string
		for _, m := range s.Moves {
			moves = append(moves, strings.Join([]string{m.Partition, m.Why, m.At.UTC().Format(time.RFC3339Nano)}, "|"))
		}
		if len(moves) == 0 || s.Moves[0].Why == "" {
			t.Errorf("moves = %+v, want some with reasons", s.Moves)
		}
		for _, want := range []struct {
			expression string
			want       []string
		}{
			{`[...document.querySelectorAll("#partitions tbody tr")].map(r => [r.cells[0].textContent, r.querySelector(".state").textContent, r.querySelector(".worker").textContent, r.querySelector("time").dateTime, r.querySelector(".token").textContent, r.querySelector(".why").textContent].join("|")).join("\n")`, rows},
			{`[...document.querySelectorAll(".card:not(.nobody)")].map(c => c.querySelector("h3").textContent + ": " + [...c.querySelectorAll(".cells a")].map(a => a.textContent).join(" ")).join("\n")`, workers},
			{`[...document.querySelectorAll("#moves li")].map(l => [l.querySelector("b").textContent, l.querySelector(".why").textContent, l.querySelector("time").dateTime].join("|")).join("\n")`, moves},
		} {
			b.await(2*time.Second, want.expression, strings.Join(want.want, "\n"))
		}
	})

	t.Run("a lock and who waits for it shows up", func(t *testing.T) {
		b.t = t
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan struct{})
		go func() {
			defer close(waiting)
			_, _ = locker.Lock(ctx, "invoices/nightly") // ends with ctx
		}()
		row := `document.querySelector("#locks tbody tr")`
		b.await(6*time.Second, row+`.querySelector(".line li")?.textContent`, "billing-7")
		if got, want := b.ask(row+".querySelector('.token').textContent"), fmt.Sprint(job.Token()); got != want {
			t.Errorf("token = %s, want %s", got, want)
		}
		cancel()
		<-waiting
	})

	t.Run("an operator's pause and a worker's end show up", func(t *testing.T) {
		b.t = t
		if err := x.admin.Pause(t.Context(), []string{"1"}, claim.Wait()); err != nil {
			t.Fatal(err)
		}
		b.await(2*time.Second, `document.querySelector("#p1 .state").textContent`, "‖ paused")
		b.await(time.Second, `document.querySelector("#nobody a").textContent`, "1‖ paused")
		if got := b.ask(`document.getElementById("nobody").hidden`); got != "false" {
			t.Errorf("the card of nobody is hidden: %s", got)
		}
		x.workers["ams-1"]()
		b.await(2*time.Second, `document.querySelectorAll(".card:not(.nobody)").length`, "3")
		b.await(2*time.Second, `[...document.querySelectorAll("#partitions .worker")].filter(w => w.textContent == "ams-1").length`, "0")
	})

	t.Run("a phone's screen is not scrolled sideways", func(t *testing.T) {
		b.t = t
		for _, width := range []int64{320, 360, 412, 768} {
			b.do(chromedp.EmulateViewport(width, 740, chromedp.EmulateMobile))
			if got, want := b.ask("document.documentElement.scrollWidth"), fmt.Sprint(width); got != want {
				t.Errorf("the page is %s wide on a screen of %s", got, want)
			}
		}
		// Nothing is cut off either.
		wide := b.ask(`[...document.querySelectorAll("main *")].filter(e => e.getClientRects().length && !e.closest(".sr, thead") && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML).join()`)
		if wide != "" {
			t.Errorf("elements beyond the edge of the screen: %s", wide)
		}
	})

	if said := b.said(); len(said) > 0 {
		t.Errorf("the browser complains of %q, want nothing", said)
	}
	b.t = t
	b.do(chromedp.EmulateViewport(1280, 900))
	x.stop()
	b.await(5*time.Second, `document.getElementById("state").textContent`, "connection lost, trying again")
}

// A browser that was given the password once has the live page too, and asks nobody but
// this server for anything.
func TestPageBehindAPasswordIsLiveAndAsksNobodyElse(t *testing.T) {
	b := newBrowser(t)
	x := newExhibit(t, admin.WithPassword("joe", "hunter2"))
	b.do(chromedp.Navigate(strings.Replace(x.url, "//", "//joe:hunter2@", 1)))
	b.await(5*time.Second, `document.getElementById("state")?.textContent`, "live")
	to := "ams-2"
	if b.ask(owner(0)) == to {
		to = "fra-1"
	}
	if err := x.admin.Move(t.Context(), "0", to); err != nil {
		t.Fatal(err)
	}
	b.await(2*time.Second, owner(0), to)
	asked := b.ask(`performance.getEntriesByType("resource").map(r => new URL(r.name)).map(u => u.origin == location.origin ? u.pathname : u.href).sort().join(" ")`)
	for _, path := range []string{"/page.css", "/page.js"} {
		if !strings.Contains(asked, path) {
			t.Errorf("the browser asked for %q, want %s among them", asked, path)
		}
	}
	if strings.Contains(asked, "://") {
		t.Errorf("the browser asked for %q, want nothing of others", asked)
	}
	if got := b.ask(`(document.documentElement.outerHTML.match(/(src|href|action)="[a-z]*:?\/\/[^"]*"/g) ?? []).join()`); got != "" {
		t.Errorf("the page points elsewhere: %s", got)
	}
	if said := b.said(); len(said) > 0 {
		t.Errorf("the browser complains of %q, want nothing", said)
	}
}

// Without JavaScript the page is a table that loads itself again.
func TestPageWithoutJavaScriptIsATable(t *testing.T) {
	b := newBrowser(t)
	x := newExhibit(t)
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	if err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(x.url))
	rows, state := run(b, chromedp.Text(chromedp.CSS("#partitions tbody"))), run(b, chromedp.Text(chromedp.CSS("#state")))
	if n := strings.Count(rows, "running"); n != 48 || !strings.Contains(rows, "ams-2") || !strings.HasPrefix(state, "as of ") {
		t.Errorf("the table is %q, %q; want 48 rows that say running, and as of when", rows, state)
	}
	if refresh := run(b, chromedp.AttributeValue(chromedp.CSS(`meta[http-equiv="refresh"]`), "content")); refresh.Value != "5" {
		t.Errorf("refresh = %q, want 5", refresh.Value)
	}
	if said := b.said(); len(said) > 0 {
		t.Errorf("the browser complains of %q, want nothing", said)
	}
}

// The page follows the scheme of the browser, and the text can be read in both.
func TestPageIsReadableInDarkAndLight(t *testing.T) {
	b := newBrowser(t)
	x := newExhibit(t)
	b.do(chromedp.Navigate(x.url))
	b.await(5*time.Second, `document.getElementById("state").textContent`, "live")
	seen := make(map[string]bool)
	for _, scheme := range []string{"light", "dark"} {
		b.prefer(scheme)
		seen[b.ask(`getComputedStyle(document.body).backgroundColor`)] = true
		// WCAG AA: 4.5 to 1, for each text on what is behind it.
		bad := b.ask(`(() => {
			const rgb = (c) => c.match(/[\d.]+/g).map(Number);
			const light = (c) => { const [r, g, b] = rgb(c).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b };
			const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if ((rgb(c)[3] ?? 1) > 0) return c } };
			const bad = new Set();
			const states = ["running", "moving", "draining", "stalled", "paused", "orphan", "quarantined", "unassigned"];
			const probe = document.querySelector(".cells a").parentElement;
			for (const s of states) { const a = document.createElement("a"); a.className = s; a.textContent = s; probe.append(a) }
			for (const e of document.querySelectorAll("body *")) {
				if (![...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()) || e.closest(".sr, script")) continue;
				const [x, y] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
				const ratio = (x + .05) / (y + .05);
				if (ratio < 4.5) bad.add((e.className || e.localName) + " " + ratio.toFixed(2));
			}
			return [...bad].join(", ");
		})()`)
		if bad != "" {
			t.Errorf("%s: contrast below 4.5: %s", scheme, bad)
		}
	}
	if len(seen) != 2 {
		t.Errorf("backgrounds = %v, want another one in the dark", seen)
	}
}

// The pictures of the docs; run with -screenshots to make them anew.
func TestScreenshots(t *testing.T) {
	if !*screenshots {
		t.Skip("asked for by -screenshots")
	}
	b := newBrowser(t)
	x := newExhibit(t)
	for i, owner := range []string{"billing-7", "billing-2", "reports-1"} {
		l, err := kvlock.New(t.Context(), x.bucket.JetStream(), kvlock.WithBucket(x.bucket), kvlock.WithOwner(owner))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		if i == 0 {
			if _, err := l.Lock(ctx, "invoices/nightly"); err != nil {
				t.Fatal(err)
			}
		} else {
			go func() { _, _ = l.Lock(ctx, "invoices/nightly") }()
		}
		defer func() {
			cancel()
			_ = l.Close(context.Background())
		}()
	}
	if err := x.admin.Pause(t.Context(), []string{"17"}, claim.Wait()); err != nil {
		t.Fatal(err)
	}
	if err := x.admin.Move(t.Context(), "5", "ams-2", claim.Wait()); err != nil {
		t.Fatal(err)
	}
	if err := x.admin.Cordon(t.Context(), []string{"fra-2"}); err != nil {
		t.Fatal(err)
	}
	for _, picture := range []struct {
		name          string
		width, height int64
		dark          bool
	}{{"page", 1180, 900, false}, {"page-dark", 1180, 900, true}, {"page-phone", 390, 844, false}} {
		scheme := "light"
		if picture.dark {
			scheme = "dark"
		}
		b.prefer(scheme)
		if picture.width < 500 {
			b.do(chromedp.Emulate(device.IPhone13))
		} else {
			b.do(chromedp.EmulateViewport(picture.width, picture.height))
		}
		b.do(chromedp.Navigate(x.url))
		b.await(5*time.Second, `document.getElementById("state").textContent`, "live")
		time.Sleep(4 * time.Second) // the locks are there, and no change is marked
		shot := run(b, chromedp.CaptureScreenshot())
		small, err := shrink(shot)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("../../docs/images", picture.name+".png")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, small, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d kB", path, len(small)/1000)
	}
}

// shrink brings a picture down to the 256 colours that it has most of.
func shrink(shot []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	count := make(map[color.RGBA]int)
	for y := from.Bounds().Min.Y; y < from.Bounds().Max.Y; y++ {
		for x := from.Bounds().Min.X; x < from.Bounds().Max.X; x++ {
			count[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++
		}
	}
	palette := make(color.Palette, 0, 256)
	for _, c := range slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] }) {
		if palette = append(palette, c); len(palette) == cap(palette) {
			break
		}
	}
	to := image.NewPaletted(from.Bounds(), palette)
	draw.Draw(to, to.Bounds(), from, from.Bounds().Min, draw.Src)
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to)
	return out.Bytes(), err
}
