package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, CompletionStage, Executor}
import java.util.function.{Function => JFunction}

import sparkdl.comm.{Clock, CommException}

/**
 * When a block came, by System.nanoTime, which Python's time.perf_counter agrees with: asked for, first byte, last byte.
 * Nobody asks for one that comes with its notice: `asked` is `begun`.
 *
 * @param bytes of the block
 */
final case class Fetched(from: Int, asked: Long, begun: Long, ended: Long, bytes: Long)

/**
 * One block under way from rank `from`: it comes with its notice, or is fetched when that is here.
 *
 * @param starter starts the fetch, so that the thread which delivers notices never waits for a connection
 * @param broken told why it failed, before those learn of it who wait for `done`
 */
private[ps] final class Part(
    val from: Int,
    sink: SegmentSink,
    overNetwork: Boolean,
    clock: Clock,
    ready: CompletableFuture[Notice],
    starter: Executor,
    fetch: SegmentSink => CompletableFuture[Void],
    broken: Throwable => Unit
) {
  @volatile private var asked = 0L
  @volatile private var ended = 0L

  /** Bytes that cross the network for it, at most. */
  val maxBytes: Long = if (overNetwork) sink.maxBytes else 0

  /** Bytes that crossed the network for it. */
  def bytes: Long = if (overNetwork) received else 0

  /** Bytes of the block, once it is here. */
  def received: Long = sink.received

  private val take: JFunction[Notice, CompletionStage[Void]] = notice =>
    if (notice.holdsBlock) {
      if (!sink.expects(notice.bytes.length))
        throw new CommException(
          CommException.Protocol,
          s"a notice of rank $from holds ${notice.bytes.length} bytes, expected ${sink.maxBytes}",
          from
        )
      sink.write(ByteBuffer.wrap(notice.bytes))
      asked = sink.firstByteNanos
      Part.Here
    } else CompletableFuture.supplyAsync(() => start(), starter).thenCompose[Void](fetching => fetching)

  private def start(): CompletableFuture[Void] = {
    asked = clock.nanoTime
    fetch(sink)
  }

  val done: CompletableFuture[Void] = ready
    .thenCompose[Void](take)
    .whenComplete { (_, cause) =>
      ended = clock.nanoTime
      if (cause != null) broken(cause)
    }

  def times: Fetched = Fetched(from, asked, sink.firstByteNanos, ended, sink.received)
}

private[ps] object Part {
  private val Here: CompletableFuture[Void] = CompletableFuture.completedFuture(null)
}

/** The blocks of one batch, from all ranks that have some of it. */
private[ps] final class Flight(val parts: Seq[Part]) {
  val all: CompletableFuture[Void] = CompletableFuture.allOf(parts.map(_.done): _*)
  def bytes: Long = parts.map(_.bytes).sum
  def times: Seq[Fetched] = parts.map(_.times)
}

/** When something was done, by System.nanoTime. */
final case class Span(begun: Long, ended: Long)

/**
 * A batch of gradients for this rank's shard.
 *
 * @param own completes when this rank's own gradients are final
 * @param sum completes when those of all ranks have been added up
 */
private[ps] final class Gathering(
    val slice: ShardSlice,
    val flight: Flight,
    val own: CompletableFuture[Void],
    val sum: CompletableFuture[Span]
)
