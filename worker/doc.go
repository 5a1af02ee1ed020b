// Package worker runs a task for every partition that a worker has claimed.
//
// A [Task] is a Go function ([Func]), a command per partition ([Command]), or the
// partition's part of a JetStream stream ([Stream]), whose messages go one by one
// and in order to a function or a command ([CommandHandler]). A [Pool] runs one
// task over one or several claimers; [Module] does so in an fx application.
//
// # What is not guaranteed
//
// Exclusion ends where a process can be paused. A worker that is stopped past its
// lease and continued finds its partition lost before it starts anything new, but
// the message or the command that it had in hand goes on until it is told, and a
// child of a stopped worker is not stopped with it. So a message can be handled
// twice, and a late write is only harmless if the resource refuses its token: pass
// TENURE_TOKEN, or [Partition.Token], along with every write.
//
// A stream task handles a message at least once. It is handled again if the worker
// ends between the handler's return and the acknowledgement.
//
// # How a hold ends
//
// A drain is a request: the task finishes what it has in hand and returns nil. The
// end of its context is an order: everything is stopped at once. A hold also ends
// by itself when the session cannot be renewed; tasks look at [Partition.Remaining]
// and are finished before it is over.
package worker
