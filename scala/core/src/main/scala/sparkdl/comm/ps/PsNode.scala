package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.util.concurrent.{
  CompletableFuture,
  ConcurrentHashMap,
  ExecutorService,
  Executors,
  ThreadFactory,
  TimeUnit,
  TimeoutException
}
import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.codahale.metrics.{Gauge, MetricRegistry}
import org.slf4j.LoggerFactory

import sparkdl.comm.{Clock, CommConf, CommException, SystemClock}
import sparkdl.comm.flow.{Fetches, ScheduledSends}
import sparkdl.comm.transport.{Answer, Blocks, ChunkNetwork, ChunkPeer, PeerMessageReceiver, Transport}

/** What one executor has for all ranks on it: the way to be called, the blocks, the sessions and their metrics. */
private[comm] final class PsNode(
    transport: Transport,
    conf: CommConf,
    registry: MetricRegistry,
    private[comm] val clock: Clock = SystemClock,
    threads: Option[ExecutorService] = None
) extends PeerMessageReceiver {
  import PsNode._

  private val sessions = new ConcurrentHashMap[(Long, Int), PsSession]

  val blocks: Blocks = transport.blocks
  private[ps] val served = new ServedBlocks
  val metrics = new PsMetrics(registry)
  registerGauge("ps.sessions")(sessions.size)
  registerGauge("ps.fetches")(open.fold(0)(_.fetches.pending)) // blocks that are wanted and not here
  registerGauge("ps.sends")(open.fold(0)(_.sends.pending)) // messages and blocks that their receivers do not have yet
  registerGauge("ps.chunks.sending")(open.fold(0)(_.network.sending))

  // Of the memory of ranks that have left, what a peer still reads, or so it seems.
  private val lingering = new AtomicLong
  registerGauge("ps.lingering.bytes")(lingering.get)

  /** Runs what takes longer than the threads of the network may wait. */
  val pool: ExecutorService = threads.getOrElse(Executors.newCachedThreadPool(daemons("sparkdl-ps")))

  // It listens, so it is there only while sessions are: most applications have none.
  private val phases = new AtomicLong
  @volatile private var open: Option[Links] = None
  private var lastLeft = clock.nanoTime
  @volatile private var closing = false
  private val allLeft = new CompletableFuture[Void] // completes once the sessions are gone, if this is closing

  /** Where the sessions here are reached. It stays the same while there are any. */
  def address: ChunkPeer = opened().network.here

  /** What fetches the blocks of other executors. */
  def fetches: Fetches = opened().fetches

  /** Numbers what the ranks here pull and push next. */
  def nextPhase(): Long = phases.incrementAndGet()

  /** What sends to other executors. */
  def sends: ScheduledSends = opened().sends

  private def opened(): Links = synchronized {
    if (open.isEmpty)
      try {
        val network = transport.openNetwork(conf.firstPort, conf.portCount, this)
        open = Some(Links(network, new Fetches(network, clock), new ScheduledSends(network, clock, lost)))
      } catch {
        case e: java.net.BindException =>
          val ports = s"spark.sparkdl.comm.ports=${conf.firstPort}-${conf.firstPort + conf.portCount - 1}"
          throw new CommException(CommException.Conf, s"$ports: no port of ${transport.host} is free: $e", cause = e)
      }
    open.get
  }

  private def closeIfIdle(): Unit = synchronized {
    if (sessions.isEmpty && clock.nanoTime - lastLeft >= TimeUnit.SECONDS.toNanos(IdleSeconds)) closeNetwork()
  }

  private def closeNetwork(): Unit = synchronized {
    open.foreach(_.network.close())
    open = None
  }

  private def registerGauge[T](name: String)(value: => T): Unit =
    registry.register(name, new Gauge[T] { override def getValue: T = value })

  /** Notices for this rank are kept from now on, even before it knows its peers. */
  def join(job: Long, rank: Int): PsSession = {
    val session = new PsSession(job, rank, this)
    if (sessions.putIfAbsent((job, rank), session) != null)
      throw new CommException(CommException.Protocol, f"rank $rank of job $job%x is already here")
    session
  }

  /** Its peers may be a little later, and take a connection that ends for a rank that is lost: the port stays for a while. */
  def leave(session: PsSession): Unit = synchronized {
    sessions.remove((session.job, session.rank), session)
    lastLeft = clock.nanoTime
    if (closing) completeIfAllLeft() else clock.after(TimeUnit.SECONDS.toNanos(IdleSeconds))(closeIfIdle())
  }

  private def completeIfAllLeft(): Unit = if (sessions.isEmpty) allLeft.complete(null)

  /** Makes `attempt` to give so many bytes back again every second until it succeeds, or the executor ends. */
  def retryToFree(bytes: Long)(attempt: => Boolean): Unit = {
    lingering.addAndGet(bytes)
    def again(): Unit = if (!closing) clock.after(TimeUnit.SECONDS.toNanos(1))(once())
    def once(): Unit = {
      val done =
        try attempt
        catch {
          case NonFatal(e) =>
            log.warn("What an ended session left could not be removed; it is tried again: {}", e.toString)
            false
        }
      if (done) lingering.addAndGet(-bytes) else again()
    }
    again()
  }

  /** No session: a rank of a gang that is gone here. Its peers learn that from the gang. */
  override def received(message: ByteBuffer): Unit = {
    def deliver(job: Long, to: Int)(take: PsSession => Unit): Unit = session(job, to).foreach(take)
    Notice
      .decode(message)
      .map(notice => deliver(notice.job, notice.to)(_.incoming.noticed(notice)))
      .orElse(SegmentOffer.decode(message).map(offer =>
        deliver(offer.job, offer.to)(_.incoming.neighbours.offered(offer))
      ))
      .orElse(Contribution.decode(message).map(part => deliver(part.job, part.to)(_.incoming.contributed(part))))
      .orElse(Farewell.decode(message).map(farewell => deliver(farewell.job, farewell.to)(_.peerFailed(farewell))))
      .getOrElse(log.warn("A message of {} bytes is none of this version", message.remaining))
  }

  override def asked(answer: Answer): Unit = {
    val block = served(answer.chunk.job, answer.chunk.block)
    open.foreach(_.sends.answer(answer, block.urgency, block.turn(answer.to)))
  }

  private def session(job: Long, rank: Int): Option[PsSession] = Option(sessions.get((job, rank)))

  override def lost(peer: ChunkPeer): Unit = sessions.values.asScala.foreach(_.peerLost(peer))

  /**
   * The bridge is closed before: that ends every session's connection, and each session is then closed by the thread that
   * runs its operations. To close one from here could unmap memory under a running operation.
   */
  def close(): Unit = {
    synchronized {
      closing = true
      completeIfAllLeft()
    }
    try clock.await(allLeft, clock.nanoTime + TimeUnit.SECONDS.toNanos(CloseSeconds))
    catch { case _: TimeoutException => log.warn("{} ranks did not leave within {} s", sessions.size, CloseSeconds) }
    pool.shutdownNow()
    closeNetwork()
  }
}

private[comm] object PsNode {
  private val IdleSeconds = 30L
  private val CloseSeconds = 5L
  private val log = LoggerFactory.getLogger(classOf[PsNode])

  private final case class Links(network: ChunkNetwork, fetches: Fetches, sends: ScheduledSends)

  private def daemons(name: String): ThreadFactory = {
    val count = new AtomicInteger
    task => {
      val thread = new Thread(task, s"$name-${count.incrementAndGet}")
      thread.setDaemon(true)
      thread
    }
  }
}
