package sparkdl.comm.ps

/**
 * What an operation waited for. A bucket is the parameters, or the gradients, of layers that travel together.
 *
 * @param bytes that came from other executors for it
 * @param buckets of each of its buckets, when the blocks came
 * @param aggregateSeconds how long it waited for a sum after the last byte had come
 * @param sum when that was added up
 */
private[comm] final case class Transfer(
    bytes: Long,
    buckets: Seq[Seq[BlockTimes]],
    aggregateSeconds: Double = 0,
    sum: Option[Span] = None
)

/**
 * When a block of rank `from` was requested, and when its first and its last byte came: nanoseconds of System.nanoTime, which
 * is the clock of Python's time.perf_counter. Nobody requests a block that comes inside of its notice: `requested` is
 * `firstByte` then.
 *
 * @param bytes of the block
 */
private[comm] final case class BlockTimes(from: Int, requested: Long, firstByte: Long, lastByte: Long, bytes: Long)

/** When something was done: nanoseconds of System.nanoTime. */
private[comm] final case class Span(begun: Long, ended: Long)
