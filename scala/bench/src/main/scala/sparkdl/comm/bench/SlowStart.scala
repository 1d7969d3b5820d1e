package sparkdl.comm.bench

import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, ConcurrentHashMap}

import sparkdl.comm.{Clock, SystemClock}
import sparkdl.comm.transport.{
  BlockServer,
  BlockSink,
  Blocks,
  ControlPlane,
  ControlReceiver,
  Transport,
  TransportWrapper
}

/** Wraps the transport in executors whose JVM has the property [[SlowStart.Property]]. */
final class SlowStart extends TransportWrapper {
  override def wrap(transport: Transport): Transport =
    sys.props.get(SlowStart.Property).fold(transport) { seconds =>
      new Transport {
        override def host: String = transport.host
        override val blocks: Blocks =
          new SlowStartBlocks(transport.blocks, (seconds.toDouble * 1e9).toLong, SystemClock)
        override def openControl(firstPort: Int, portCount: Int, receiver: ControlReceiver): ControlPlane =
          transport.openControl(firstPort, portCount, receiver)
      }
    }
}

object SlowStart {

  /**
   * A JVM's property, not a key of Spark's conf: nobody sets it but who emulates a network. Seconds. Spark refuses to start
   * executors with properties that begin as its own do.
   */
  val Property = "lab.sparkdl.startupSeconds"
}

/**
 * For emulated networks only: blocks whose fetches start up as slowly as on a cluster that looks servers up and connects to
 * them each time. Of the fetches from one server one starts up at a time, which takes `startupNanos`; meanwhile those that
 * have started go on.
 */
private[bench] final class SlowStartBlocks(blocks: Blocks, startupNanos: Long, clock: Clock) extends Blocks {

  /** When the last start-up from each server ends, by `clock`. */
  private val ends = new ConcurrentHashMap[BlockServer, java.lang.Long]

  override def fetch(from: BlockServer, job: Long, name: String, sink: BlockSink): CompletableFuture[Void] =
    if (from == here) blocks.fetch(from, job, name, sink)
    else {
      val now = clock.nanoTime
      val end = ends.compute(from, (_, last) => (if (last == null) now else math.max(now, last)) + startupNanos)
      val started = new CompletableFuture[Void]
      clock.after(end - now)(started.complete(null))
      started.thenCompose(_ => blocks.fetch(from, job, name, sink))
    }

  /** Every block is fetched, so that every one starts up. */
  override def inlineThreshold: Long = 0
  override def here: BlockServer = blocks.here
  override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = blocks.put(job, name, chunks)
  override def retire(job: Long, name: String, over: () => Boolean): Boolean = blocks.retire(job, name, over)
  override def status(job: Long, name: String): Option[(Long, Long)] = blocks.status(job, name)
}
