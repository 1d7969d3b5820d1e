package sparkdl.comm.transport

import java.net.BindException
import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, ConcurrentHashMap, CountDownLatch, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

/**
 * Executors in one JVM, without Spark, for tests. Messages are handed over at once, on the thread that sends them; a block
 * goes from the memory that its executor published into the sink, on the thread that fetches it.
 */
final class InMemoryNetwork {
  private val executors = new ConcurrentHashMap[Int, InMemoryTransport]

  /** The executor that the others reach at port `number`, both for messages and for blocks. */
  def executor(number: Int): InMemoryTransport = executors.computeIfAbsent(number, new InMemoryTransport(this, _))
}

/** One executor of an [[InMemoryNetwork]]: it counts what it does, and can be told to fail or to wait. */
final class InMemoryTransport private[transport] (network: InMemoryNetwork, number: Int) extends Transport with Blocks {

  /** What was put and not retired, by name. */
  val published = new ConcurrentHashMap[String, Array[ByteBuffer]]

  /** Fetches of this executor's blocks. */
  val served = new AtomicInteger

  /** Fetches that this executor began. */
  val fetched = new AtomicInteger

  /** How often the control plane was opened, and how often closed. */
  val opened, closed = new AtomicInteger

  /** No port is free. */
  @volatile var portsTaken = false

  val attemptsToRetire = new AtomicInteger

  /** So many of the attempts to retire a block fail, counted from the first one, as while a reader holds it. */
  @volatile var heldAttempts = 0

  /** Fetches of this executor wait until it is down. */
  @volatile var connected = new CountDownLatch(0)

  @volatile private var receiver: ControlReceiver = _

  /** Delivers a message to this executor, as if another one had sent it. */
  def deliver(message: Any): Unit = receiver.received(message)

  override def host: String = "here"
  override def blocks: Blocks = this

  override def openControl(firstPort: Int, portCount: Int, receiver: ControlReceiver): ControlPlane = {
    if (portsTaken) throw new BindException("Address already in use")
    opened.incrementAndGet()
    this.receiver = receiver
    new ControlPlane {
      override def port: Int = number
      override def connect(host: String, port: Int): ControlPeer = message => network.executor(port).deliver(message)
      override def close(): Unit = closed.incrementAndGet()
    }
  }

  override def inlineThreshold: Long = 64 << 10
  override def here: BlockServer = BlockServer(host, number, number.toString)
  override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = published.put(name, chunks)
  override def retire(job: Long, name: String, over: () => Boolean): Boolean = {
    val gone = attemptsToRetire.incrementAndGet() > heldAttempts
    if (gone) published.remove(name)
    gone
  }
  override def status(job: Long, name: String): Option[(Long, Long)] = None
  override def fetch(from: BlockServer, job: Long, name: String, sink: BlockSink): CompletableFuture[Void] = {
    fetched.incrementAndGet()
    if (!connected.await(20, TimeUnit.SECONDS)) throw new IllegalStateException("a test left its fetches waiting")
    val server = network.executor(from.port)
    server.served.incrementAndGet()
    val block = server.published.get(name)
    block.foreach(chunk => sink.write(chunk.duplicate))
    val bytes = block.map(_.remaining.toLong).sum
    if (sink.expects(bytes)) CompletableFuture.completedFuture(null)
    else CompletableFuture.failedFuture(new IllegalStateException(s"block $name has $bytes bytes"))
  }
}
