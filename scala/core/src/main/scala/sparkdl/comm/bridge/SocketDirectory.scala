package sparkdl.comm.bridge

import java.nio.channels.SocketChannel
import java.nio.file.{Files, LinkOption, Path, Paths}
import java.nio.file.attribute.PosixFilePermissions
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.util.concurrent.TimeUnit

import org.slf4j.LoggerFactory

/** The directory of the bridge's socket, which only this user may enter. */
private[bridge] object SocketDirectory {
  val SocketName = "bridge"
  private val Prefix = "sparkdl-"

  /** A Unix socket's path has at most 107 bytes, and this directory and the socket in it need some of them. */
  private val MaxParentBytes = 60
  private val log = LoggerFactory.getLogger(SocketDirectory.getClass)

  /** Where sockets go: the JVM's directory for temporary files, or /tmp where that has too long a name. */
  def parent(temporary: String): Path =
    Paths.get(if (temporary.getBytes.length <= MaxParentBytes) temporary else "/tmp")

  def create(parent: Path): Path =
    Files.createTempDirectory(
      parent,
      Prefix,
      PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    )

  /**
   * Removes what executors that were killed left beside `own`: directories that [[create]] made for the same user, whose
   * socket nobody answers. Anybody may put other things there, and links.
   */
  def sweep(own: Path, nowMillis: Long = System.currentTimeMillis): Unit = {
    val ours = Inode(own)
    val found = Files.newDirectoryStream(own.getParent, Prefix + "*")
    try
      found.forEach { left =>
        val abandoned = left.resolve(SocketName)
        try
          if (Inode(left) == ours && Inode(abandoned).isSocket && old(left, nowMillis) && !answers(abandoned)) {
            Files.deleteIfExists(abandoned)
            Files.deleteIfExists(left)
          }
        catch { case e: java.io.IOException => log.debug(s"$left stays: $e") }
      }
    finally found.close()
  }

  /** What the path itself is, not what it may link to: type and permissions as of stat(2), and the owner. */
  private final case class Inode(mode: Int, owner: Int) {
    def isSocket: Boolean = (mode & 0xf000) == 0xc000
  }

  private object Inode {
    def apply(path: Path): Inode = {
      val found = Files.readAttributes(path, "unix:mode,uid", LinkOption.NOFOLLOW_LINKS)
      Inode(found.get("mode").asInstanceOf[Int], found.get("uid").asInstanceOf[Int])
    }
  }

  /** A bridge that is being set up does not answer yet. */
  private def old(directory: Path, nowMillis: Long): Boolean =
    Files.getLastModifiedTime(directory).toMillis < nowMillis - TimeUnit.MINUTES.toMillis(1)

  /**
   * Does not wait: a process that is stopped leaves visitors waiting for ever once its queue of them is full. Only a socket
   * that refuses has nobody behind it.
   */
  private def answers(path: Path): Boolean = {
    val visitor = SocketChannel.open(StandardProtocolFamily.UNIX)
    try {
      visitor.configureBlocking(false)
      visitor.connect(UnixDomainSocketAddress.of(path))
      true
    } catch {
      case _: java.net.ConnectException => false
      case _: java.net.SocketException => true
    } finally visitor.close()
  }
}
