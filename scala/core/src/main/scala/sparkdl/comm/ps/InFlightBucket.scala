package sparkdl.comm.ps

import java.util.concurrent.{CompletableFuture, CompletionStage}
import java.util.function.{Function => JFunction}

import sparkdl.comm.{Clock, CommException}

/**
 * One block on its way from rank `from`: it comes inside of its notice, or begins to when the notice is here.
 *
 * @param isElsewhere whether another executor has it
 * @param start begins with a block of so many bytes
 * @param broken told why it failed, before those learn of it who wait for `done`
 */
private[ps] final class BlockFetch(
    val from: Int,
    isElsewhere: Boolean,
    sink: SegmentSink,
    clock: Clock,
    ready: CompletableFuture[Notice],
    start: Long => BlockFetch.Underway,
    broken: Throwable => Unit
) {
  @volatile private var requested: () => Long = () => sink.firstByteNanos
  @volatile private var lastByte = 0L

  /** Bytes that come from another executor for it, at most. */
  val maxBytes: Long = if (isElsewhere) sink.maxBytes else 0

  /** Bytes that came from another executor for it. */
  def bytes: Long = if (isElsewhere) received else 0

  /** Bytes of the block, once it is here. */
  def received: Long = sink.received

  private val take: JFunction[Notice, CompletionStage[Void]] = notice => {
    if (!sink.expects(notice.blockBytes))
      throw new CommException(
        CommException.Protocol,
        s"a notice of rank $from is of a block of ${notice.blockBytes} bytes, expected ${sink.maxBytes}",
        from
      )
    if (notice.isInline) {
      sink.all.write(notice.contents)
      BlockFetch.Here
    } else {
      val underway = start(notice.blockBytes)
      requested = underway.requested
      underway.done
    }
  }

  val done: CompletableFuture[Void] = ready
    .thenCompose[Void](take)
    .whenComplete { (_, cause) =>
      lastByte = clock.nanoTime
      if (cause != null) broken(cause)
    }

  def times: BlockTimes = BlockTimes(from, requested(), sink.firstByteNanos, lastByte, sink.received)
}

private[ps] object BlockFetch {

  /** @param requested when it was asked for, once it was */
  final case class Underway(requested: () => Long, done: CompletableFuture[Void])

  val Here: CompletableFuture[Void] = CompletableFuture.completedFuture(null)
}

/** The blocks of one bucket, from all ranks that have some of it. */
private[ps] final class InFlightBucket(val blocks: Seq[BlockFetch]) {
  val all: CompletableFuture[Void] = CompletableFuture.allOf(blocks.map(_.done): _*)
  def bytes: Long = blocks.map(_.bytes).sum
  def times: Seq[BlockTimes] = blocks.map(_.times)
}

/**
 * The sum of all ranks' gradients of one bucket, for this rank's shard.
 *
 * @param own completes when this rank's own gradients are final
 * @param sum completes when those of all ranks have been added up
 */
private[ps] final class GradientReduction(
    val slice: ShardSlice,
    val inFlight: InFlightBucket,
    val own: CompletableFuture[Void],
    val sum: CompletableFuture[Span]
)
