// Package embedded runs a NATS server with JetStream inside the process: one
// server, or a cluster of three.
//
// # What it is not
//
// It is not a shared lock service. All servers of a [Server] live and die with
// one process on one machine, a cluster of three included: three replicas in one
// process survive no more than one does. It is right for tests, for trying things
// out, and for a program whose workers all run on one machine. Everything else
// wants NATS servers of its own.
//
// Without [Store] nothing survives [Server.Stop], not even streams with file
// storage.
//
// With [Store] what has been acknowledged is on the disk, as far as the disk
// itself tells the truth: every write is synced before it is acknowledged, unless
// [SyncEvery] allows otherwise. Only one server at a time uses a store directory;
// a second one, in this process or another, gets [ErrStoreInUse]. That rests on a
// lock of the operating system, which a network file system may not keep.
//
// # Use
//
// [Start] returns when the server is ready, JetStream included, and
// [Server.Stop] when nothing of it is left. Without [Listen] there is no network:
// the only way in is [Server.Connect], or a [Server] as the provider given to
// [nats.InProcessServer]. Both follow a server that is stopped and started again
// with [Server.StopServer] and [Server.StartServer], so their connections come
// back, which a connection made to a plain *server.Server does not.
//
// A server without [Listen] may be used in a testing/synctest bubble, started and
// stopped inside it. A cluster needs the network, and so real time.
//
// Bad options are errors that match [ErrOption], before anything is made.
//
// All methods may be called by several goroutines at once.
package embedded
