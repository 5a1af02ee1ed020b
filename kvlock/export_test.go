package kvlock

// Lingering is how long the ticket of a waiter that was served stays.
const Lingering = lingering
