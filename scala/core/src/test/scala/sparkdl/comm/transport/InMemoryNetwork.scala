// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.transport

import java.io.IOException
import java.net.BindException
import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, ConcurrentHashMap, ConcurrentLinkedQueue}
import java.util.concurrent.atomic.AtomicInteger

/**
 * Executors in one JVM, without Spark, for tests. A message is delivered with its last part, on the
 * thread that sends it. A chunk is copied from its executor's published memory to the target, on
 * the thread that fetches it.
 */
final class InMemoryNetwork {
  private val executors = new ConcurrentHashMap[Int, InMemoryTransport]

  /** Return the executor at port `number`. */
  def executor(number: Int): InMemoryTransport =
    executors.computeIfAbsent(number, new InMemoryTransport(this, _))
}

/**
 * Executor of an [[InMemoryNetwork]], with counts of its operations. A test can make it fail or
 * wait.
 */
final class InMemoryTransport private[transport] (network: InMemoryNetwork, number: Int)
    extends Transport with Blocks {

  /** Blocks that are not retired, by name. */
  val published = new ConcurrentHashMap[String, Array[ByteBuffer]]

  /** Number of this executor's blocks that others began to fetch. */
  val served = new AtomicInteger

  /** Names of this executor's blocks that others requested, in order. */
  val asked = new ConcurrentLinkedQueue[String]

  /** Numbers of openings and closings of the network. */
  val opened, closed = new AtomicInteger

  /** True if no port is free. */
  @volatile var portsTaken = false

  val attemptsToRetire = new AtomicInteger

  /** Number of first attempts to retire a block that fail, as while a reader holds it. */
  @volatile var heldAttempts = 0

  /** True if a reader holds every block until its retirement stops waiting. */
  @volatile var readersStay = false

  /** Exception of failed attempts, if they throw. */
  @volatile var retireFailure = Option.empty[Throwable]

  /** True if this executor answers no request. */
  @volatile var silent = false

  @volatile private var receiver: PeerMessageReceiver = _

  /** Deliver a message to this executor, as if another one had sent it. */
  def deliver(message: Array[Byte]): Unit = receiver.onMessage(ByteBuffer.wrap(message))

  val address: ChunkPeer = ChunkPeer(host, number, executorId)
  override def host: String = "here"
  override def blocks: Blocks = this

  override def openNetwork(
      firstPort: Int,
      portCount: Int,
      receiver: PeerMessageReceiver
  ): ChunkNetwork = {
    if (portsTaken) throw new BindException("Address already in use")
    opened.incrementAndGet()
    this.receiver = receiver
    new ChunkNetwork {
      override def address: ChunkPeer = InMemoryTransport.this.address
      override def sending: Int = 0
      override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit = {
        if (part.offset + part.length == part.message.length)
          network.executor(to.port).deliver(part.message)
        done(Some(System.nanoTime))
      }
      override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
          done: Option[ChunkFailure] => Unit
      ): ChunkFetch = {
        val executor = network.executor(from.port)
        if (chunk.offset == 0) executor.asked.add(chunk.block)
        if (!executor.silent) done(executor.serve(chunk, into))
        () => if (executor.silent) done(Some(new ChunkFailure.Cancelled("cancelled")))
      }
      override def probe(peers: Iterable[ChunkPeer]): CompletableFuture[Void] =
        CompletableFuture.completedFuture[Void](null)
      override def close(): Unit = closed.incrementAndGet()
    }
  }

  private def serve(chunk: Chunk, into: ChunkTarget): Option[ChunkFailure] = {
    if (chunk.offset == 0) served.incrementAndGet()
    val bytes = whole(chunk.block)
    if (chunk.offset + chunk.length > bytes.limit())
      Some(new ChunkFailure.NotServed(s"block ${chunk.block} has ${bytes.limit()} bytes"))
    else {
      into.write(bytes.position(chunk.offset.toInt).limit(chunk.offset.toInt + chunk.length))
      None
    }
  }

  private def whole(name: String): ByteBuffer = {
    val parts = published.get(name)
    val bytes = ByteBuffer.allocate(parts.map(_.remaining).sum)
    parts.foreach(part => bytes.put(part.duplicate))
    bytes.flip()
  }

  override def inlineThreshold: Long = 64 << 10
  override def executorId: String = number.toString
  override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit =
    published.put(name, chunks)
  override def retire(job: Long, name: String, isOver: () => Boolean): Boolean = {
    val gone = attemptsToRetire.incrementAndGet() > heldAttempts && !readersStay
    while (readersStay && !isOver()) Thread.sleep(1)
    if (gone) published.remove(name) else retireFailure.foreach(throw _)
    gone
  }
  override def status(job: Long, name: String): Option[(Long, Long)] = None
  override def read(job: Long, name: String)(take: ByteBuffer => Unit): Unit = {
    if (!published.containsKey(name)) throw new IOException(s"block $name is not here")
    published.get(name).foreach(part => take(part.duplicate))
  }
}
