package sparkdl.comm.ps

/**
 * Data that an operation waited for. A bucket is the parameters, or the gradients, of layers that travel together.
 *
 * @param bytes that other executors sent for it.
 * @param buckets times of the blocks of each bucket
 * @param aggregateSeconds wait for a sum after the last byte arrived
 * @param sum time in which the gradients were added up
 */
private[comm] final case class Transfer(
    bytes: Long,
    buckets: Seq[Seq[BlockTimes]],
    aggregateSeconds: Double = 0,
    sum: Option[Span] = None
)

/**
 * Times when a block of rank `from` was requested, and when its first and its last byte arrived. They are nanoseconds
 * of System.nanoTime, which is the clock of Python's time.perf_counter. Nobody requests an inline block, so its
 * `requested` is its `firstByte`.
 *
 * @param bytes of the block
 */
private[comm] final case class BlockTimes(from: Int, requested: Long, firstByte: Long, lastByte: Long, bytes: Long)

/** Begin and end of an action, in nanoseconds of System.nanoTime. */
private[comm] final case class Span(begun: Long, ended: Long)
