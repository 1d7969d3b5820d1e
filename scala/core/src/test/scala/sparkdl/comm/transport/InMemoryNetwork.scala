package sparkdl.comm.transport

import java.io.IOException
import java.net.BindException
import java.nio.ByteBuffer
import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}
import java.util.concurrent.atomic.AtomicInteger

/**
 * Executors in one JVM, without Spark, for tests. Messages are handed over with their last part, on the thread that sends it; a chunk
 * goes from the memory that its executor published into the target, on the thread that fetches it.
 */
final class InMemoryNetwork {
  private val executors = new ConcurrentHashMap[Int, InMemoryTransport]

  /** The executor that the others reach at port `number`. */
  def executor(number: Int): InMemoryTransport = executors.computeIfAbsent(number, new InMemoryTransport(this, _))
}

/** One executor of an [[InMemoryNetwork]]: it counts what it does, and can be told to fail or to wait. */
final class InMemoryTransport private[transport] (network: InMemoryNetwork, number: Int) extends Transport with Blocks {

  /** What was put and not retired, by name. */
  val published = new ConcurrentHashMap[String, Array[ByteBuffer]]

  /** Blocks of this executor that others began to fetch. */
  val served = new AtomicInteger

  /** Names of this executor's blocks that others asked for, in this order. */
  val asked = new ConcurrentLinkedQueue[String]

  /** How often the network was opened, and how often closed. */
  val opened, closed = new AtomicInteger

  /** No port is free. */
  @volatile var portsTaken = false

  val attemptsToRetire = new AtomicInteger

  /** So many of the attempts to retire a block fail, counted from the first one, as while a reader holds it. */
  @volatile var heldAttempts = 0

  /** A reader holds every block until whoever retires it waits no longer. */
  @volatile var readersStay = false

  /** These attempts throw. */
  @volatile var failsToRetire = false

  /** What is asked of this executor gets no answer. */
  @volatile var silent = false

  @volatile private var receiver: PeerMessageReceiver = _

  /** Delivers a message to this executor, as if another one had sent it. */
  def deliver(message: Array[Byte]): Unit = receiver.received(ByteBuffer.wrap(message))

  val address: ChunkPeer = ChunkPeer(host, number, executorId)
  override def host: String = "here"
  override def blocks: Blocks = this

  override def openNetwork(firstPort: Int, portCount: Int, receiver: PeerMessageReceiver): ChunkNetwork = {
    if (portsTaken) throw new BindException("Address already in use")
    opened.incrementAndGet()
    this.receiver = receiver
    new ChunkNetwork {
      override def here: ChunkPeer = address
      override def sending: Int = 0
      override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit = {
        if (part.offset + part.length == part.message.length) network.executor(to.port).deliver(part.message)
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
  override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = published.put(name, chunks)
  override def retire(job: Long, name: String, over: () => Boolean): Boolean = {
    val gone = attemptsToRetire.incrementAndGet() > heldAttempts && !readersStay
    while (readersStay && !over()) Thread.sleep(1)
    if (gone) published.remove(name)
    else if (failsToRetire) throw new IOException(s"block $name cannot be removed")
    gone
  }
  override def status(job: Long, name: String): Option[(Long, Long)] = None
  override def read(job: Long, name: String)(take: ByteBuffer => Unit): Unit = {
    if (!published.containsKey(name)) throw new IOException(s"block $name is not here")
    published.get(name).foreach(part => take(part.duplicate))
  }
}
