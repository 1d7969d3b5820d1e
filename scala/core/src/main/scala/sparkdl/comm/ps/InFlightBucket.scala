package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, CompletionStage, Executor}
import java.util.function.{Function => JFunction}

import sparkdl.comm.{Clock, CommException}

/**
 * One block on its way from rank `from`: it comes inside of its notice, or is fetched when the notice is here.
 *
 * @param starter starts the fetch, so that the thread which delivers notices never waits for a connection
 * @param broken told why it failed, before those learn of it who wait for `done`
 */
private[ps] final class BlockFetch(
    val from: Int,
    sink: SegmentSink,
    overNetwork: Boolean,
    clock: Clock,
    ready: CompletableFuture[Notice],
    starter: Executor,
    fetch: SegmentSink => CompletableFuture[Void],
    broken: Throwable => Unit
) {
  @volatile private var requested = 0L
  @volatile private var lastByte = 0L

  /** Bytes that cross the network for it, at most. */
  val maxBytes: Long = if (overNetwork) sink.maxBytes else 0

  /** Bytes that crossed the network for it. */
  def bytes: Long = if (overNetwork) received else 0

  /** Bytes of the block, once it is here. */
  def received: Long = sink.received

  private val take: JFunction[Notice, CompletionStage[Void]] = notice =>
    if (notice.isInline) {
      if (!sink.expects(notice.bytes.length))
        throw new CommException(
          CommException.Protocol,
          s"a notice of rank $from holds ${notice.bytes.length} bytes, expected ${sink.maxBytes}",
          from
        )
      sink.write(ByteBuffer.wrap(notice.bytes))
      requested = sink.firstByteNanos
      BlockFetch.Here
    } else CompletableFuture.supplyAsync(() => start(), starter).thenCompose[Void](fetching => fetching)

  private def start(): CompletableFuture[Void] = {
    requested = clock.nanoTime
    fetch(sink)
  }

  val done: CompletableFuture[Void] = ready
    .thenCompose[Void](take)
    .whenComplete { (_, cause) =>
      lastByte = clock.nanoTime
      if (cause != null) broken(cause)
    }

  def times: BlockTimes = BlockTimes(from, requested, sink.firstByteNanos, lastByte, sink.received)
}

private[ps] object BlockFetch {
  private val Here: CompletableFuture[Void] = CompletableFuture.completedFuture(null)
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
